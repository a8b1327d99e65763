"""Training rows in memory as TrainingBlocks, and workers that run tasks in this process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from etl.fit.rounds import RowBatch, TrainingBlocks
from etl.ops.base import Type
from spark.workers import Workers
from storage.feature_spec import LABEL

ARROW_TYPES: Mapping[Type, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "string": pa.string(),
    "ints": pa.list_(pa.int64()),
    "strings": pa.list_(pa.string()),
}


@dataclass(frozen=True)
class InThisProcess(Workers):
    """Runs tasks one after the other. Like other workers, it pickles them."""

    @property
    def spark(self) -> Any:
        raise AssertionError("no JVM is needed")

    @property
    def parallelism(self) -> int:
        return 2

    def run(self, tasks: int, run: Callable[[int], Iterator[pa.RecordBatch]], schema: pa.Schema) -> pa.Table:
        run = pickle.loads(pickle.dumps(run))
        return pa.Table.from_batches([batch for index in range(tasks) for batch in run(index)], schema)

    def collect(self, tasks: int, run: Callable[[int], str]) -> list[str]:
        run = pickle.loads(pickle.dumps(run))
        return [run(index) for index in range(tasks)]


@dataclass(frozen=True)
class _Read:
    tasks: tuple[tuple[RowBatch, ...], ...]

    def __call__(self, task: int, wanted: frozenset[str]) -> Iterator[RowBatch]:
        for batch in self.tasks[task]:
            yield RowBatch(batch.row_ids, batch.dt, {name: batch.columns[name] for name in wanted})


def blocks_of_rows(
    rows: Sequence[Mapping[str, Any]],
    types: Mapping[str, Type],
    tasks: int = 1,
    batch_rows: int = 10_000,
    coded: bool = False,
    day: str = "_day",
) -> TrainingBlocks:
    """The rows as blocks.

    Args:
        rows: rows with row_id, label, the columns of `types`, and their day in `day`.
        types: the raw columns.
        tasks: number of tasks; rows are dealt to them in turn.
        batch_rows: maximum number of rows of a batch.
        coded: whether arrays, and elements of lists, are dictionary-encoded.
        day: the column with the day.
    """
    batches: list[tuple[RowBatch, ...]] = []
    for task in range(tasks):
        of_task: list[RowBatch] = []
        for dt in sorted({row[day] for row in rows}):
            chosen = [row for row in rows[task::tasks] if row[day] == dt]
            for start in range(0, len(chosen), batch_rows):
                of_task.append(_batch(chosen[start : start + batch_rows], types, dt, coded))
        batches.append(tuple(of_task))
    return TrainingBlocks(tasks, _Read(tuple(batches)))


def _batch(rows: Sequence[Mapping[str, Any]], types: Mapping[str, Type], dt: str, coded: bool) -> RowBatch:
    columns = {name: pa.array([row[name] for row in rows], ARROW_TYPES[kind]) for name, kind in types.items()}
    if coded:
        columns = {name: encoded(array) for name, array in columns.items()}
    columns[LABEL] = pa.array([row["label"] for row in rows], pa.float32())
    return RowBatch(np.array([row["row_id"] for row in rows], np.int64), dt, columns)


def encoded(array: pa.Array) -> pa.Array:
    """The array, or the elements of its lists, dictionary-encoded."""
    if not pa.types.is_list(array.type):
        return array.dictionary_encode()
    lengths = [0 if value is None else len(value) for value in array.to_pylist()]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    starts = pa.array(offsets, mask=np.append(nulls, False))
    return pa.ListArray.from_arrays(starts, array.flatten().dictionary_encode())
