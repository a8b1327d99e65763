"""The command line of the stage refit_model."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.refit_model import run

DESCRIPTION = (
    "Trains the model that the gate promoted on the run date again, on the rows of the train, validation "
    "and test splits (train.refit). The resulting model, the refit, makes the lists in place of the "
    "promoted model. If no "
    "model was promoted on the run date, the job does nothing."
)


if __name__ == "__main__":
    run_job("refit_model", DESCRIPTION, run)
