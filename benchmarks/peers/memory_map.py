"""Makes batches from memory-mapped binary files, whose rows were decoded and transposed beforehand.

This loader does not have to read Parquet. The setting `by` has three values:

* `row`: the rows of a batch are copied in the order of a random permutation of all rows.
* `batch`: ranges of rows are copied in random order. The rows within a range are not shuffled.
* `copy`: the ranges are copied in order, into memory that is reused. No loader can be faster than this copy.
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
