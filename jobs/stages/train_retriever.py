"""Trains the two-tower model that retrieves candidates (a source retrieval of the section candidates), on the run date's dataset."""

from __future__ import annotations

from jobs.stages.train_model import train
from storage.job_summary import JobSummary
from storage.run_context import RunContext
from training.registry.retriever import retriever_config


def run(context: RunContext) -> JobSummary:
    """Trains it as train_model trains the ranker, from fresh weights on all train days."""
    return train(context, retriever_config(context.config))
