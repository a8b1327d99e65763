"""Petastorm's DataLoader, which reads row by row and is its most common form. See petastorm_batched for the
settings.
"""

from __future__ import annotations

from petastorm.pytorch import DataLoader

from benchmarks.loader_contender import Batches, LoaderTask
from benchmarks.loader_data import FeatureTable
from benchmarks.peers import petastorm_batched


def epoch(table: FeatureTable, task: LoaderTask, seed: int) -> Batches:
    return petastorm_batched.epoch(table, task, seed, DataLoader)
