"""The interface of a contender of the loader's benchmark, a module that makes epochs of batches, and its
process.

    python -m benchmarks.loader_contender task.json

The first epoch is compared with the table (rows, sum of ids, sum of labels). It also warms caches and memory.
The following epochs are timed, each from its first call to its last batch. Batches are only counted.
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
        module: its `epoch(table, task, seed)` iterates over batches (labels, ids). Ids are one matrix or
            one tensor a column.
        buffer_rows: rows that are shuffled among each other.
        epochs: number of timed epochs.
        threads: number of cores.
        report: path of the report, with the seconds and CPU seconds of each epoch.
        settings: settings of this contender alone.
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
    """Reads an epoch to its end and compares its sums with the table's.

    Raises:
        ValueError: the sums differ, so the epoch does not hold every row of the table once.
    """
    rows = id_sum = label_sum = 0
    for labels, ids in batches:
        rows += len(labels)
        label_sum += int(labels.sum())
        id_sum += sum(int(column.sum(dtype=torch.int64)) for column in ids)
    received, expected = (rows, id_sum, label_sum), (table.rows, table.id_sum, table.label_sum)
    if received != expected:
        raise ValueError(
            f"an epoch gave (rows, sum of ids, sum of labels) {received}, the table holds {expected}"
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
            raise ValueError(f"an epoch gave {rows} rows, the table holds {task.table.rows}")
    Path(task.report).write_text(json.dumps(epochs), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
