"""The command line of the stage train_model."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.train_model import run

DESCRIPTION = (
    "Trains the model of a run date on its dataset, from the champion before it on where that fits: the "
    "new challenger."
)


if __name__ == "__main__":
    run_job("train_model", DESCRIPTION, run)
