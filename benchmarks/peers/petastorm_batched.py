"""Petastorm's BatchedDataLoader, which reads through Petastorm's batch reader.

The contender has these settings:

* `pool`: the worker pool of Petastorm's reader.
* `queue`: True if rows go through a shuffling queue of `buffer_rows` rows (LoaderTask).
* `shuffle_rows`: True if the reader shuffles the rows of each row group.
* `stack`: True if a batch consists of the three tensors that a model needs. Otherwise a batch has one tensor
  per column, and our models cannot use it.
"""

from __future__ import annotations

import warnings

import torch
from petastorm.pytorch import BatchedDataLoader, DataLoader
from petastorm.reader import Reader, make_batch_reader

from benchmarks.contender import CATEGORICAL, DENSE, LABEL
from benchmarks.loader_contender import Batches, LoaderTask
from benchmarks.loader_data import FeatureTable

warnings.filterwarnings("ignore", category=FutureWarning)


def open_reader(table: FeatureTable, task: LoaderTask, seed: int) -> Reader:
    return make_batch_reader(
        [f"file://{path}" for path in table.files],
        schema_fields=["|".join(f"{name}$" for name in (LABEL, *DENSE, *CATEGORICAL))],
        reader_pool_type=task.settings["pool"],
        workers_count=task.threads,
        shuffle_rows=task.settings["shuffle_rows"],
        shuffle_row_groups=True,
        seed=seed + 1,  # 0 is none
        num_epochs=1,
    )


def epoch(
    table: FeatureTable, task: LoaderTask, seed: int, of: type[DataLoader] = BatchedDataLoader
) -> Batches:
    reader = open_reader(table, task, seed)
    try:
        queue = task.buffer_rows if task.settings["queue"] else 0
        for batch in of(reader, batch_size=task.local_batch_size, shuffling_queue_capacity=queue):
            if task.settings["stack"]:
                torch.stack([batch[name] for name in DENSE], dim=1)  # (L, 13), unused here
                yield batch[LABEL], [torch.stack([batch[name] for name in CATEGORICAL], dim=1)]
            else:
                yield batch[LABEL], [batch[name] for name in CATEGORICAL]
    finally:
        reader.stop()
        reader.join()
