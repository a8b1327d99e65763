"""How faults are drawn, tried and counted, on a small tree whose tests are one script."""

from __future__ import annotations

from pathlib import Path

import pytest

from setup.environment import PACKAGES
from setup.mutations import FAULTS, ROOT, Fault, draw, read_faults, read_results, run

SUMS = '''"""Sums."""


def total(values: list[int]) -> int:
    """The sum of the values."""
    result = 0
    for value in values:
        result += value
    return result


def short() -> int:
    return 1
'''
TEST = "from sums import total\n\n\ndef test_total() -> None:\n    assert total([1, 2]) == 3\n"
# Stands for `setup.changed_tests`: it chooses the only test.
CHOOSES = """
import sys
import pytest
sys.exit(pytest.main(["-q", "-rf", "test_sums.py", *sys.argv[1:]]))
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # pytest starts in a third of the time
    (tmp_path / "sums.py").write_text(SUMS)
    (tmp_path / "setup").mkdir()
    (tmp_path / "setup/__init__.py").touch()
    (tmp_path / "setup/changed_tests.py").write_text(CHOOSES)
    (tmp_path / "test_sums.py").write_text(TEST)
    return tmp_path


def test_a_draw_is_the_same_for_a_seed_and_has_functions_with_several_statements(tree: Path) -> None:
    (tree / "shop").mkdir()
    (tree / "shop/sums.py").write_text(SUMS)
    assert draw(tree, ["shop"], 5, seed=1) == ["shop/sums.py:4 total"]
    drawn = draw(ROOT, ["metrics"], 20, seed=7)
    assert drawn == draw(ROOT, ["metrics"], 20, seed=7) != draw(ROOT, ["metrics"], 20, seed=8)


def test_text_that_occurs_twice_is_refused() -> None:
    assert Fault("a.py", "1", "2", "").applied("x = 1") == "x = 2"
    for text in ("x = 1 + 1", "x = 3"):
        with pytest.raises(ValueError, match=r"occurs [02] times in a\.py, not once"):
            Fault("a.py", "1", "2", "").applied(text)


@pytest.mark.processes
def test_caught_and_missed_faults_are_recorded_once_and_taken_back(tree: Path, tmp_path: Path) -> None:
    caught = Fault("sums.py", "result += value", "result -= value", "The sum is wrong.")
    missed = Fault("sums.py", "return 1", "return 2", "The number is wrong.")
    results = tmp_path / "results.jsonl"
    run([caught], [], results, tree)
    run([caught, missed], [], results, tree)
    [first, second] = read_results(results)
    assert (first["caught"], first["by"]) == (True, ["test_sums.py::test_total"])
    assert (second["caught"], second["by"]) == (False, [])
    assert (tree / "sums.py").read_text() == SUMS


@pytest.mark.processes
def test_a_test_that_fails_anyway_is_left_out_and_tests_that_do_not_run_are_an_error(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = Fault("sums.py", "return 1", "return 2", "The number is wrong.")
    (tree / "test_sums.py").write_text(TEST.replace("== 3", "== 4"))
    run([fault], [], tmp_path / "first.jsonl", tree)
    assert [line["caught"] for line in read_results(tmp_path / "first.jsonl")] == [False]
    assert "test_sums.py::test_total also fails without the fault" in capsys.readouterr().out
    (tree / "setup/changed_tests.py").write_text("raise SystemExit('no such commit')")
    with pytest.raises(RuntimeError, match="did not run:\nno such commit"):
        run([fault], [], tmp_path / "results.jsonl", tree)
    assert read_results(tmp_path / "results.jsonl") == []
    assert (tree / "sums.py").read_text() == SUMS


def test_there_are_a_hundred_faults_in_files_of_the_product() -> None:
    faults = read_faults(FAULTS)
    assert len({(fault.file, fault.old) for fault in faults}) == 100
    for fault in faults:
        assert fault.file.split("/")[0] in PACKAGES
        assert fault.effect
        assert fault.old != fault.new
