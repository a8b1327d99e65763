"""The counts of setup/house.py on a small tree, and the limits on this checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from setup import house

FILES = {
    "conf/__init__.py": "",
    "conf/names.py": "class Name:\n    pass\n\n\nclass _Hidden:\n    pass\n",
    "conf/load.py": "from conf.names import Name\nfrom conf import dates\n",
    "conf/dates.py": "class Settings:\n    pass\n",
    "etl/build.py": "class _Hidden:\n    pass\n\n\ndef run() -> None:\n    import conf.load\n",
    "etl/plugin.py": "class Settings:\n    pass\n",
    "tests/test_names.py": "import conf.names\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_modules_importers_and_lines_are_counted(tree: Path) -> None:
    counted = house.count(tree, ("conf", "etl"))
    assert set(counted.lines) == {name for name in FILES if not name.startswith("tests")}
    assert counted.single == ["conf/dates.py", "conf/load.py", "conf/names.py"]  # a test is no importer
    assert counted.neighbours == ["conf/dates.py", "conf/names.py"]
    assert counted.lines["conf/names.py"] == 6
    assert counted.tree_lines == {"conf": 10, "etl": 8, "tests": 1}
    assert not counted.repeated, "each plug-in has a class Settings, and private classes do not count"
    assert not house.problems(counted)
    assert "imported by one module:   3, of these by one in the same folder: 2" in house.report(counted)


def test_what_exceeds_a_limit_is_a_sentence_with_its_remedy(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "etl/names.py").write_text("class Name:\n    pass\n")
    monkeypatch.setattr(house, "ROOT", tree)
    monkeypatch.setattr(house, "MOST_MODULES", 6)
    monkeypatch.setattr(house, "MOST_LINES", 5)
    for folder in house.PACKAGES:
        (tree / folder).mkdir(exist_ok=True)
    assert house.main(["--check"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "7 modules are more than 6: merge modules that contain one idea, or raise MOST_MODULES in "
        "setup/house.py if there is a new idea",
        "conf/names.py has 6 lines, more than 5: divide it into modules of one idea each",
        "etl/build.py has 6 lines, more than 5: divide it into modules of one idea each",
        "conf/names.py and etl/names.py define a class Name: rename one",
    ]


def test_this_checkout_is_within_the_limits(capsys: pytest.CaptureFixture[str]) -> None:
    assert house.main(["--check"]) == 0, capsys.readouterr().out
