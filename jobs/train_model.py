"""The command line of the stage train_model."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.train_model import run

DESCRIPTION = (
    "Trains a new model, the challenger, on the dataset of the run date. The training starts from the "
    "weights of the champion if that is possible, otherwise from random weights."
)


if __name__ == "__main__":
    run_job("train_model", DESCRIPTION, run)
