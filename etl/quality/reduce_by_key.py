"""Brings what is known of each key (a column) to the driver: parts are made where the rows lie, and added up on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame


class Part(Protocol):
    """What is known of some rows. Addition does not depend on the order of parts."""

    def __add__(self, other: Self) -> Self: ...

    def to_json(self) -> str: ...

    @classmethod
    def from_json(cls, text: str) -> Self: ...


P = TypeVar("P", bound=Part)
Batches = Iterable[pa.RecordBatch]

_SCHEMA = "key string, part string"


def gather(rows: DataFrame, summarise: Callable[[str, pa.RecordBatch], P], kind: type[P]) -> dict[str, P]:
    """Key → the sum of the parts of its rows, for every key that has a row. One Spark job.

    Each task makes its parts; those of a key meet in one task. So one row a key comes back, whatever the data.

    Args:
        rows: the first column is the key, a string.
        summarise: the part of a key and rows of it.
        kind: the type of the parts.
    """
    parts = rows.mapInArrow(_maker(summarise), _SCHEMA)
    merged = parts.repartition("key").mapInArrow(_adder(kind), _SCHEMA)
    return _added((row["key"], kind.from_json(row["part"])) for row in merged.collect())


def by_key(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of a batch apart by the text in its first column."""
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


def _added(parts: Iterable[tuple[str, P]]) -> dict[str, P]:
    found: dict[str, P] = {}
    for name, part in parts:
        found[name] = found[name] + part if name in found else part
    return found


def _maker(summarise: Callable[[str, pa.RecordBatch], P]) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    def make(batches: Batches) -> Iterator[pa.RecordBatch]:
        found = (pair for batch in batches for pair in by_key(batch))
        yield _as_batch(_added((name, summarise(name, rows)) for name, rows in found))

    return make


def _adder(kind: type[P]) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    def add(batches: Batches) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in batch.to_pylist())
        yield _as_batch(_added((row["key"], kind.from_json(row["part"])) for row in rows))

    return add


def _as_batch(found: Mapping[str, Part]) -> pa.RecordBatch:
    texts = [part.to_json() for part in found.values()]
    return pa.RecordBatch.from_arrays(
        [pa.array(list(found), pa.string()), pa.array(texts, pa.string())], ["key", "part"]
    )
