"""Batches from a memory-mapped binary file, decoded and row-major beforehand: a loader without the cost of
Parquet.

Setting `by`: `row` gathers each batch by a permutation of all rows of the table. `batch` copies slices of the
file in random order and does not shuffle their rows. `copy` is the limit: the same slices in order, into
reused memory.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.loader_contender import Batches, LoaderTask
from benchmarks.loader_data import FeatureTable


@cache
def _open(*paths: str) -> list[NDArray[np.generic]]:
    return [np.load(path, mmap_mode="r") for path in paths]


def epoch(table: FeatureTable, task: LoaderTask, seed: int) -> Batches:
    arrays = _open(table.labels, table.dense, table.ids)
    size, by = task.local_batch_size, task.settings["by"]
    starts = np.arange(0, table.rows, size)
    random = np.random.default_rng(seed)
    rows = random.permutation(table.rows) if by == "row" else None
    if by == "batch":
        random.shuffle(starts)
    into = [np.empty((size, *array.shape[1:]), dtype=array.dtype) for array in arrays]
    for start in starts:
        stop = min(start + size, table.rows)
        if rows is not None:
            chosen = rows[start:stop]
            labels, _, ids = (torch.from_numpy(array[chosen]) for array in arrays)
        else:
            if by == "batch":
                into = [np.empty((size, *array.shape[1:]), dtype=array.dtype) for array in arrays]
            for array, target in zip(arrays, into, strict=True):
                np.copyto(target[: stop - start], array[start:stop])
            labels, _, ids = (torch.from_numpy(target[: stop - start]) for target in into)
        yield labels, [ids]
