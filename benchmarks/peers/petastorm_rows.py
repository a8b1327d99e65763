"""Petastorm's DataLoader, which takes rows one by one: the form most code is written in. Settings as petastorm_batched's."""

from __future__ import annotations

from petastorm.pytorch import DataLoader

from benchmarks.loader_contender import Batches, LoaderTask
from benchmarks.loader_data import FeatureTable
from benchmarks.peers import petastorm_batched


def epoch(table: FeatureTable, task: LoaderTask, seed: int) -> Batches:
    return petastorm_batched.epoch(table, task, seed, DataLoader)
