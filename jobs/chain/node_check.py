"""Runs the checks of a node (setup/doctor) before the stages of a run.

The checks run in a separate process, because they import packages that nightly does not need. In addition,
jobs must not import the package `setup`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conf.errors import ConfigError, InfrastructureError
from jobs.chain.submit import Submission

_ROOT = Path(__file__).resolve().parents[2]
_MODULE, _TO_CORRECT = "setup.doctor", 1


def check_node(submission: Submission) -> None:
    """Prints the results of the checks of this machine, the profile and the lake.

    Raises:
        ConfigError: the checks are not installed here, or do not accept the arguments.
        InfrastructureError: a check failed. The printed results say what to correct.
    """
    if not (_ROOT / "setup/doctor").is_dir():
        raise ConfigError(
            f"--check-node: {_ROOT} has no folder setup/doctor",
            "run the job from a checkout, from the archive of `make dist` or in the image",
        )
    arguments = ["--profile", submission.properties, "--config", submission.config]
    for override in submission.overrides:
        arguments += ["--set", override]
    # With this path, Python finds the module from any current folder.
    paths = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", _MODULE, *arguments]
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, stdout=sys.stderr, check=False, env=environment)
    if done.returncode == _TO_CORRECT:
        raise InfrastructureError(
            f"this machine cannot run the jobs of {submission.profile}",
            "make the corrections in the lines with FIX, or run without --check-node",
        )
    if done.returncode:
        raise ConfigError(
            f"--check-node: the checks ended with exit code {done.returncode}", "correct what they printed"
        )
