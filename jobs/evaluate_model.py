"""The command line of the stage evaluate_model."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.evaluate_model import run

DESCRIPTION = (
    "Compares the challenger with the champion on the same raw test rows. Each model's workflow computes "
    "its features from these rows. The gate then decides which of the two models serves."
)


if __name__ == "__main__":
    run_job("evaluate_model", DESCRIPTION, run)
