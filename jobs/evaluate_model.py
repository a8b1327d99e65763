"""The command line of the stage evaluate_model."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.evaluate_model import run

DESCRIPTION = (
    "Challenger against champion on the same raw test rows, each through its own workflow; the gate "
    "decides who serves."
)


if __name__ == "__main__":
    run_job("evaluate_model", DESCRIPTION, run)
