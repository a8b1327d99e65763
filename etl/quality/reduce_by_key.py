"""Distributed reduce by key: tasks compute partial results, which are then added for each key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame


class Part(Protocol):
    """A partial result, computed from some rows. The sum of several parts must not depend on their order."""

    def __add__(self, other: Self) -> Self: ...

    def to_json(self) -> str:
        """Returns the partial result as JSON."""

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Converts the result of `to_json` back to a partial result."""


P = TypeVar("P", bound=Part)
Batches = Iterable[pa.RecordBatch]

_SCHEMA = "key string, part string"


def reduce_by_key(
    rows: DataFrame, summarise: Callable[[str, pa.RecordBatch], P], kind: type[P]
) -> dict[str, P]:
    """Returns a dictionary that maps each key to the sum of the partial results of its rows.

    The function runs one Spark job. Each task computes partial results of its rows. Then, for each key, one
    task adds all partial results. So the driver collects one row per key.

    Args:
        rows: the first column must be the key, a string.
        summarise: takes a key and some of its rows, and returns their partial result.
        kind: type of the partial results.
    """
    parts = rows.mapInArrow(_summarise_batches(summarise), _SCHEMA)
    merged = parts.repartition("key").mapInArrow(_add_batches(kind), _SCHEMA)
    return _sum_by_key((row["key"], kind.from_json(row["part"])) for row in merged.collect())


def by_key(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yields (key, rows) for each different text in the first column of a batch."""
    encoded = batch.column(0).dictionary_encode()
    codes = np.asarray(encoded.indices)
    for code, name in enumerate(encoded.dictionary.to_pylist()):
        yield (
            name,
            pa.RecordBatch.from_arrays(
                [column.take(pa.array(np.flatnonzero(codes == code))) for column in batch.columns],
                schema=batch.schema,
            ),
        )


def _sum_by_key(parts: Iterable[tuple[str, P]]) -> dict[str, P]:
    sums: dict[str, P] = {}
    for key, part in parts:
        sums[key] = sums[key] + part if key in sums else part
    return sums


def _summarise_batches(
    summarise: Callable[[str, pa.RecordBatch], P],
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        rows_by_key = (pair for batch in batches for pair in by_key(batch))
        yield _as_batch(_sum_by_key((key, summarise(key, rows)) for key, rows in rows_by_key))

    return run


def _add_batches(kind: type[P]) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in batch.to_pylist())
        yield _as_batch(_sum_by_key((row["key"], kind.from_json(row["part"])) for row in rows))

    return run


def _as_batch(parts: Mapping[str, Part]) -> pa.RecordBatch:
    texts = [part.to_json() for part in parts.values()]
    return pa.RecordBatch.from_arrays(
        [pa.array(list(parts), pa.string()), pa.array(texts, pa.string())], ["key", "part"]
    )
