"""`pytest tests/etl/ops --op NAME` runs the tests of one operator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from etl.ops import FRAME_OPERATORS, OPERATORS
from tests.etl.ops.conftest import pytest_configure

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.processes


def _collect(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "tests/etl/ops", "--collect-only", "-q", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_only_tests_of_the_operator_are_collected() -> None:
    run = _collect("--op", "winsorize")
    assert run.returncode == 0, run.stdout + run.stderr
    tests = [line for line in run.stdout.splitlines() if "::" in line]
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
