"""Starts training on the ranks of a Spark application; `python -m training.launch` trains without Spark."""

from training.launch.ranks import train_on_ranks, train_plan

__all__ = ["train_on_ranks", "train_plan"]
