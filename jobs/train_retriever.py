"""Trains the two-tower model that retrieves candidates (a source retrieval of the section candidates), on the run date's dataset."""

from __future__ import annotations

from jobs.runner import Job, Result, run
from jobs.train_model import train
from training.retriever import retriever_config


def train_retriever(job: Job) -> Result:
    """Trains it as train_model trains the ranker, from fresh weights on all train days."""
    return train(job, retriever_config(job.config))


if __name__ == "__main__":
    run("train_retriever", __doc__ or "", train_retriever)
