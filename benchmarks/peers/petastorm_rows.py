"""Petastorm's DataLoader, its most common loader, which reads single rows.

petastorm_batched.py describes the settings of this contender.
"""

from __future__ import annotations

from petastorm.pytorch import DataLoader

from benchmarks.loader_contender import Batches, LoaderTask
from benchmarks.loader_data import FeatureTable
from benchmarks.peers import petastorm_batched


def epoch(table: FeatureTable, task: LoaderTask, seed: int) -> Batches:
    return petastorm_batched.epoch(table, task, seed, DataLoader)
