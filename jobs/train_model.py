"""Trains the challenger of a run date on its dataset.

If possible, the training starts from the champion's weights.
"""

from __future__ import annotations

from jobs.model_training import train
from jobs.runner import run_job
from storage.job_summary import JobSummary
from storage.run_context import RunContext

DESCRIPTION = (
    "Trains a new model, the challenger, on the dataset of the run date. The training starts from the "
    "weights of the champion if that is possible, otherwise from random weights."
)


def run(context: RunContext) -> JobSummary:
    """Trains the model of the section `model`."""
    return train(context, context.config)


if __name__ == "__main__":
    run_job("train_model", DESCRIPTION, run)
