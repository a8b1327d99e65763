"""Starts a training: on the ranks of a Spark application, or (`python -m training.launch`) on one rank without Spark."""

from training.launch.ranks import train_on_ranks

__all__ = ["train_on_ranks"]
