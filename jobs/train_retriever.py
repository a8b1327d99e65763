"""The command line of the stage train_retriever."""

from __future__ import annotations

from jobs.runner import run_job
from jobs.stages.train_retriever import run

DESCRIPTION = (
    "Trains the model that retrieves candidates (the source `retrieval` in the section "
    "`candidates`), on the dataset of the run date."
)


if __name__ == "__main__":
    run_job("train_retriever", DESCRIPTION, run)
