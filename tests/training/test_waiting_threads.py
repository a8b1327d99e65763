"""Threads of torch that wait for one another do not keep a core busy for long."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.processes import ROOT, environment

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("module", ["training.models", "scoring.model.predictor"])
def test_our_packages_limit_spinning_before_openmp_starts(module: str) -> None:
    """OMP_DISPLAY_ENV=VERBOSE makes libgomp itself print the limit that it uses."""
    assert _limit(module, {}) == "1000"
    assert _limit(module, {"GOMP_SPINCOUNT": "77"}) == "77"


def _limit(module: str, variables: dict[str, str]) -> str:
    code = f"import {module}, torch; torch.zeros(9).sum()"
    env = {**environment(), "OMP_DISPLAY_ENV": "VERBOSE", **variables}
    run = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=True
    )
    [line] = {line for line in run.stderr.splitlines() if "GOMP_SPINCOUNT" in line}
    return line.split("'")[1]
