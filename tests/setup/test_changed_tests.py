"""Which tests `make test-changed` chooses, on a small repository with real git and on this checkout."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from setup import changed_tests
from setup.changed_tests import (
    changed_files,
    choose,
    dependencies,
    distances,
    expected_seconds,
    tracked_files,
)
from tests import conftest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parent.parent.parent
FILES = {
    "shop/__init__.py": "",
    "shop/prices.py": "RATE = 2\n",
    "shop/sums.py": "def total() -> int:\n    from shop.prices import RATE\n\n    return RATE\n",
    "shop/checks.py": (
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from shop.prices import RATE\n"
    ),
    "shop/plugins/__init__.py": 'from importlib import import_module\n\nimport_module(f"{__name__}.one")\n',
    "shop/plugins/one.py": "",
    "shop/registry.py": 'from importlib import import_module\n\nimport_module("shop.rules" + ".cheap")\n',
    "shop/rules/__init__.py": "",
    "shop/rules/cheap.py": "",
    "shop/rules/dear.py": "",
    "shop/native/scan.cpp": "int one;\n",
    "shop/native/library.py": "",
    "jobs/sell.py": "import shop.sums\n",
    "tests/conftest.py": "",
    "tests/test_prices.py": "import shop.prices\n",
    "tests/test_sums.py": "from shop import sums\n",
    "tests/test_checks.py": "import shop.checks\n",
    "tests/test_sell.py": 'JOB = "jobs/sell.py"\n',
    "tests/test_patched.py": 'NAME = "shop.prices.RATE"\n',
    "tests/test_plugins.py": "import shop.plugins\n",
    "tests/test_native.py": "import shop.native.library\n",
    "tests/test_registry.py": "import shop.registry\n",
    "tests/rules_of_day.py": 'RULES = {"cheap": 3}\n',
    "tests/test_rules.py": "from tests.rules_of_day import RULES\n",
    "tests/deep/conftest.py": "import shop.prices\n",
    "tests/deep/test_deep.py": "",
    "tests/contract/test_tree.py": "",
}
# A changed file of this checkout, and a test that depends on it.
EXPECTED = [
    ("etl/operators/clip.py", "tests/etl/ops/test_compute.py"),
    ("etl/operators/winsorize.py", "tests/etl/ops/test_engines.py"),
    ("training/architectures/dlrm.py", "tests/training/test_models.py"),
    ("etl/native/scan.cpp", "tests/etl/text/test_scan.py"),
    ("jobs/show.py", "tests/contract/test_help.py"),
]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "First")
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)


def nearest(root: Path, *changed: str) -> dict[str, int]:
    steps = distances(dependencies_of(root), changed, files_of(root))
    return {path: step for path, step in steps.items() if is_test(path)}


def is_test(path: str) -> bool:
    return Path(path).name.startswith("test_")


@cache
def files_of(root: Path) -> list[str]:
    """All files of a repository; of the tests of this checkout only those of EXPECTED, to parse fewer files."""
    expected = {test for _, test in EXPECTED}
    return [path for path in tracked_files(root) if root != ROOT or not is_test(path) or path in expected]


@cache
def dependencies_of(root: Path) -> Mapping[str, set[str]]:
    return dependencies(root, files_of(root))


def test_tests_of_a_module_are_ordered_by_their_distance(shop: Path) -> None:
    assert nearest(shop, "shop/prices.py") == {
        "tests/test_prices.py": 1,
        "tests/test_patched.py": 1,  # names it as text
        "tests/test_sums.py": 2,  # an import in a function
        "tests/deep/test_deep.py": 2,  # through its conftest.py
        "tests/test_sell.py": 3,  # starts a job by its path
        "tests/contract/test_tree.py": 4,  # reads the whole tree
    }


@pytest.mark.parametrize(
    "changed, test",
    [("shop/plugins/one.py", "tests/test_plugins.py"), ("shop/native/scan.cpp", "tests/test_native.py")],
)
def test_plugins_and_compiled_files_have_tests(shop: Path, changed: str, test: str) -> None:
    assert set(nearest(shop, changed)) == {test, "tests/contract/test_tree.py"}


def test_a_test_depends_on_the_plugins_that_its_strings_name(shop: Path) -> None:
    """Nothing imports a plug-in, so all tests of its registry would be equally near."""
    steps = nearest(shop, "shop/rules/cheap.py")
    assert (steps["tests/test_rules.py"], steps["tests/test_registry.py"]) == (2, 2)
    (shop / "tests/test_names.py").write_text('NAMES = ["cheap"]\n')
    files_of.cache_clear()
    dependencies_of.cache_clear()
    assert nearest(shop, "shop/rules/cheap.py")["tests/test_names.py"] == 1
    assert "tests/test_names.py" not in nearest(shop, "shop/rules/dear.py")


def test_a_changed_test_runs_first(shop: Path) -> None:
    assert nearest(shop, "tests/test_checks.py")["tests/test_checks.py"] == 0


def test_changes_are_found_in_commits_the_working_tree_and_new_files(shop: Path) -> None:
    assert changed_files(shop, "HEAD") == []
    (shop / "shop/prices.py").write_text("RATE = 3\n")
    git(shop, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "Second")
    (shop / "shop/sums.py").unlink()
    (shop / "shop/new.py").write_text("")
    assert changed_files(shop, "HEAD") == ["shop/new.py", "shop/sums.py"]
    assert changed_files(shop, "HEAD~1") == ["shop/new.py", "shop/prices.py", "shop/sums.py"]
    assert "shop/sums.py" not in tracked_files(shop)
    with pytest.raises(SystemExit, match="no-such-commit"):
        changed_files(shop, "no-such-commit")


def test_the_limit_leaves_out_the_farthest_tests_but_never_the_nearest() -> None:
    steps = {"tests/test_far.py": 3, "tests/test_near.py": 1, "tests/test_next.py": 2, "shop/a.py": 1}
    seconds = {"tests/test_far.py": 4.0, "tests/test_near.py": 50.0, "tests/test_next.py": 5.0}
    assert choose(steps, seconds, 55.0) == changed_tests.Choice(
        ("tests/test_near.py", "tests/test_next.py"), ("tests/test_far.py",), 55.0
    )
    assert choose(steps, seconds, 1.0).run == ("tests/test_near.py",)


def test_recorded_seconds_count_and_others_are_guessed(shop: Path) -> None:
    (shop / "build").mkdir()
    (shop / changed_tests.SECONDS).write_text(
        json.dumps({"tests/test_sums.py": 7.5, "tests/test_sums.py (extended)": 2.0})
    )
    (shop / "tests/test_frames.py").write_text("from pyspark.sql import SparkSession\n")
    seconds = expected_seconds(shop, ["tests/test_sums.py", "tests/test_prices.py", "tests/test_frames.py"])
    assert seconds["tests/test_sums.py"] == 9.5
    assert seconds["tests/test_prices.py"] < seconds["tests/test_frames.py"]


@pytest.mark.parametrize(
    "changes, recorded",
    [
        ({}, True),
        ({"maxfail": 1, "failed": False}, True),
        ({"maxfail": 1}, False),  # `-x`: the tests after the failed one did not run
        ({"deselect": ["tests/test_sums.py::test_two"]}, False),
        ({"keyword": "one"}, False),
        ({"markexpr": ""}, False),
        ({"args": ["tests/test_sums.py::test_one"]}, False),
    ],
)
def test_seconds_are_recorded_unless_only_some_tests_of_a_file_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], recorded: bool
) -> None:
    monkeypatch.setattr(conftest, "ROOT", tmp_path)
    reports = [
        pytest.TestReport(
            f"tests/test_sums.py::test_{name}", ("", 0, ""), {}, "passed", None, "call", duration=2
        )
        for name in ("one", "two")
    ]
    stats = {"passed": reports[:1], "failed" if changes.pop("failed", True) else "skipped": reports[1:]}
    options = {"markexpr": "not extended", "keyword": "", "deselect": None, "maxfail": 0, **changes}
    config: Any = SimpleNamespace(option=SimpleNamespace(**options), args=options.pop("args", ["tests"]))
    reporter: Any = SimpleNamespace(stats=stats)
    conftest.pytest_terminal_summary(reporter, config)
    path = tmp_path / changed_tests.SECONDS
    assert (json.loads(path.read_text()) if path.exists() else None) == (
        {"tests/test_sums.py": 4.0} if recorded else None
    )


def test_a_run_names_what_it_leaves_out(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(changed_tests, "ROOT", shop)
    assert changed_tests.main([]) == 0
    assert "nothing has changed since HEAD" in capsys.readouterr().out
    (shop / "shop/prices.py").write_text("RATE = 3\n")
    assert changed_tests.main(["--list", "--minutes", "0.1", "--workers", "1"]) == 0
    shown = capsys.readouterr()
    assert shown.out.split() == ["tests/test_prices.py", "tests/test_patched.py"]
    assert "4 test files: tests (2), tests/contract (1), tests/deep (1)" in shown.err


@pytest.mark.parametrize("changed, test", EXPECTED)
def test_files_of_this_checkout_have_the_tests_that_one_expects(changed: str, test: str) -> None:
    assert test in nearest(ROOT, changed)


def test_tests_with_the_folder_or_name_of_a_changed_module_run_first() -> None:
    tests = {f"tests/{name}": 1.0 for name in ("a/test_b.py", "shop/test_z.py", "z/test_prices_of_day.py")}
    changed = ["shop/prices.py"]
    choice = choose(dict.fromkeys(tests, 3) | {"shop/prices.py": 0}, tests, 2.0, changed)
    assert choice.run == ("tests/shop/test_z.py", "tests/z/test_prices_of_day.py")
    assert choice.left_out == ("tests/a/test_b.py",)
    both = {"tests/a/test_b.py": 2, "tests/shop/test_prices.py": 3}
    assert choose(both, dict.fromkeys(both, 1.0), 1.0, changed).run == ("tests/shop/test_prices.py",)


@pytest.mark.parametrize(
    "modules, run", [(["sell"], "sell"), (["sell", "b", "c"], "sell"), (["sell", *"bcd"], "a")]
)
def test_tests_with_the_name_of_one_of_the_few_users_of_a_module_run_first(
    modules: list[str], run: str
) -> None:
    """Otherwise cheaper tests of the same distance would push out the tests of a job that alone uses a module."""
    steps = {"shop/prices.py": 0, "tests/test_sell_all.py": 2, "tests/test_a.py": 2}
    steps |= {f"jobs/{name}.py": 1 for name in modules}
    seconds = {"tests/test_sell_all.py": 9.0, "tests/test_a.py": 1.0}
    choice = choose(steps, seconds, 9.0, ["shop/prices.py"])
    assert choice.run == (f"tests/test_{run}{'_all' if run == 'sell' else ''}.py",)
