"""Trains the model of the source `retrieval` in the section `candidates`."""

from __future__ import annotations

from jobs.model_training import train
from jobs.runner import run_job
from storage.job_summary import JobSummary
from storage.run_context import RunContext
from training.registry.versions import retriever_config

DESCRIPTION = (
    "Trains the model that retrieves candidates (the source `retrieval` in the section "
    "`candidates`), on the dataset of the run date."
)


def run(context: RunContext) -> JobSummary:
    """Trains the model like train_model, but always from random weights and on all train days."""
    return train(context, retriever_config(context.config))


if __name__ == "__main__":
    run_job("train_retriever", DESCRIPTION, run)
