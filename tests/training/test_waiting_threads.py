"""Threads of torch that wait for one another do not keep a core busy for long; test_launch.py has a training."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from conf.process import limit_spinning
from tests.processes import ROOT, environment


def test_a_limit_of_the_environment_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "77")
    limit_spinning()
    assert os.environ["GOMP_SPINCOUNT"] == "77"


@pytest.mark.processes
@pytest.mark.parametrize("module", ["training.models", "scoring.model.predictor"])
def test_our_packages_limit_spinning_before_openmp_starts(module: str) -> None:
    """OMP_DISPLAY_ENV=VERBOSE makes libgomp itself print the limit that it uses."""
    code = f"import {module}, torch; torch.zeros(9).sum()"
    env = {**environment(), "OMP_DISPLAY_ENV": "VERBOSE"}
    del env["GOMP_SPINCOUNT"]  # tests/conftest.py has set it
    run = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=True
    )
    [line] = {line for line in run.stderr.splitlines() if "GOMP_SPINCOUNT" in line}
    assert line.split("'")[1] == "1000"
