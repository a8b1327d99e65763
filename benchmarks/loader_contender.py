"""The interface of the contenders (our loader and its peers) of the loader benchmark.

    python -m benchmarks.loader_contender task.json

This command runs one contender in a new process. A contender is a module with a function `epoch`, which yields
the batches of one epoch. The process checks the first epoch: its number of rows, sum of ids and sum of labels
must be those of the table. This epoch also warms caches and memory. The next epochs are timed, each from the
call of `epoch` to the last batch. In these epochs, the process only counts the rows of the batches.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.loader_data import FeatureTable

Batches = Iterator[tuple[Tensor, list[Tensor]]]


@dataclass(frozen=True)
class LoaderTask:
    """The task of a contender.

    Attributes:
        module: name of the contender's module. Its function `epoch(table, task, seed)` yields one pair per
            batch: the labels, and a list of id tensors (one matrix, or one tensor per column).
        table: the table to read.
        local_batch_size: number of rows of a batch.
        buffer_rows: number of rows that are shuffled together.
        epochs: number of timed epochs.
        threads: number of threads that the contender may use.
        report: path of the report with the seconds and CPU seconds of each epoch.
        settings: further settings, which only this contender has.
    """

    module: str
    table: FeatureTable
    local_batch_size: int
    buffer_rows: int
    epochs: int
    threads: int
    report: str
    settings: dict[str, Any]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> LoaderTask:
        values = json.loads(path.read_text(encoding="utf-8"))
        table = FeatureTable(**{**values["table"], "files": tuple(values["table"]["files"])})
        return cls(**{**values, "table": table})


def check(batches: Batches, table: FeatureTable) -> None:
    """Reads all batches of an epoch, and checks that it has every row of the table exactly once.

    Raises:
        ValueError: the number of rows, the sum of ids or the sum of labels differs from that of the table.
    """
    rows = id_sum = label_sum = 0
    for labels, ids in batches:
        rows += len(labels)
        label_sum += int(labels.sum())
        id_sum += sum(int(column.sum(dtype=torch.int64)) for column in ids)
    received, expected = (rows, id_sum, label_sum), (table.rows, table.id_sum, table.label_sum)
    if received != expected:
        raise ValueError(
            f"an epoch gave (rows, sum of ids, sum of labels) {received}, but the table has {expected}"
        )


def main(task_file: str) -> None:
    task = LoaderTask.load(Path(task_file))
    torch.set_num_threads(task.threads)
    module = importlib.import_module(task.module)
    check(module.epoch(task.table, task, seed=0), task.table)
    epochs = []
    for seed in range(1, task.epochs + 1):
        start, cpu = time.perf_counter(), time.process_time()
        rows = sum(len(labels) for labels, _ in module.epoch(task.table, task, seed))
        epochs.append([time.perf_counter() - start, time.process_time() - cpu])
        if rows != task.table.rows:
            raise ValueError(f"an epoch gave {rows} rows, but the table has {task.table.rows}")
    Path(task.report).write_text(json.dumps(epochs), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
