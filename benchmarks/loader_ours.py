"""Our loader as a contender of the loader benchmark.

The loader reads the files through Petastorm, for 16 logical shards on one rank, as in a training run
(training/loop/run.py).
"""

from __future__ import annotations

from benchmarks.loader_contender import Batches, LoaderTask
from benchmarks.loader_data import FeatureTable, spec
from conf.types import Reading
from training.data.loader import Loader
from training.data.prefetch import Prefetch
from training.data.sharding import DataFile, plan_shards, row_groups

NUM_SHARDS = 16


def epoch(table: FeatureTable, task: LoaderTask, seed: int) -> Batches:
    """Yields the batches of an epoch. Padding rows, which only the last batch can have, are removed."""
    rows = table.rows // len(table.files)
    files = [DataFile(path, rows, (rows,)) for path in table.files]
    plan = plan_shards([group.rows for group in row_groups(files)], NUM_SHARDS, task.local_batch_size)
    loader = Loader(files, plan, range(NUM_SHARDS), spec(), seed, reading=Reading(pool_rows=task.buffer_rows))
    with Prefetch(loader.batches()) as batches:
        for batch in batches:
            if batch.global_weight == len(batch.labels):
                yield batch.labels, [batch.categorical]
            else:
                real = batch.weights > 0
                yield batch.labels[real], [batch.categorical[real]]
