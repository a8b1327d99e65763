"""`pytest tests/etl/ops --op NAME` runs the tests of one operator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from etl.ops import FRAME_OPERATORS, OPERATORS
from tests.etl.ops.conftest import pytest_configure

ROOT = Path(__file__).parents[3]


class _Collected:
    """A plugin that keeps the ids of the tests that pytest has collected."""

    tests: Sequence[str] = ()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.tests = [item.nodeid for item in session.items]


def test_only_tests_of_the_operator_are_collected() -> None:
    """A second pytest in this process collects tests. It shares the imports of this one."""
    collected = _Collected()
    quiet = [f"-pno:{plugin}" for plugin in ("cacheprovider", "faulthandler")]
    folder = f"--rootdir={ROOT}", f"{ROOT}/tests/etl/ops"
    code = pytest.main(["--collect-only", "-qs", *quiet, *folder, "--op", "winsorize"], plugins=[collected])
    assert code == pytest.ExitCode.OK
    tests = collected.tests
    names = {line.partition("::")[2].partition("[")[0] for line in tests}
    assert {
        "test_features_are_the_oracles",
        "test_every_step_is_the_same_after_json",
        "test_columns_that_cannot_be_fitted_are_errors_of_data",
        "test_an_operator_writes_the_entry_it_is_read_from",
    } <= names
    others = (set(OPERATORS) | set(FRAME_OPERATORS)) - {"winsorize", "fill", "filter", "clip", "rename"}
    assert [line for line in tests for other in others if f"[{other}" in line] == []


def test_an_unknown_operator_is_a_usage_error(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytestconfig.option, "op", "winsorise", raising=False)
    with pytest.raises(
        pytest.UsageError, match="--op winsorise: there is no such operator; use one of bucke"
    ):
        pytest_configure(pytestconfig)
