"""Trains the model of the source `retrieval` in the section `candidates`."""

from __future__ import annotations

from jobs.stages.train_model import train
from storage.job_summary import JobSummary
from storage.run_context import RunContext
from training.registry.retriever import retriever_config


def run(context: RunContext) -> JobSummary:
    """Trains the model like train_model, but always from random weights and on all train days."""
    return train(context, retriever_config(context.config))
