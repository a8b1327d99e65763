"""Computes statistics that operators define themselves (etl.ops.training_statistics.MergeableStatistic)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import DataError
from conf.lazy_imports import F
from etl.ops.base import LISTS, Type
from etl.ops.training_statistics import MergeableStatistic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The types of the values that a statistic receives. For lists, these are the types of their elements.
VALUE_TYPES: Mapping[Type, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "string": pa.string(),
    "ints": pa.int64(),
    "strings": pa.string(),
}
_SPARK_TYPES: Mapping[Type, str] = {
    "int": "bigint",
    "float": "double",
    "string": "string",
    "ints": "array<bigint>",
    "strings": "array<string>",
}
_SCHEMA = "statistic int, state binary"


@dataclass(frozen=True)
class MeasuredStatistic:
    """A statistic and the column for which it is computed.

    Attributes:
        name: name of the column for error messages.
        kind: the type of the column.
    """

    name: str
    statistic: MergeableStatistic
    kind: Type

    def measure(self, values: pa.Array, counts: np.ndarray) -> bytes:
        """Returns the state of n values without null. values[i] occurs counts[i] times.

        Raises:
            DataError: the state is larger than the statistic allows.
        """
        kind = VALUE_TYPES[self.kind]
        return self._checked(self.statistic.measure(values.cast(kind), counts))

    def merge(self, states: Iterable[bytes]) -> bytes:
        """Merges states. If there are no states, returns the state of an empty set of values.

        Raises:
            DataError: a state is larger than the statistic allows.
        """
        merged: bytes | None = None
        for state in states:
            merged = state if merged is None else self._checked(self.statistic.merge(merged, state))
        if merged is not None:
            return merged
        return self.measure(pa.array([], VALUE_TYPES[self.kind]), np.zeros(0, np.int64))

    def result(self, state: bytes) -> object:
        """Returns the statistic as it is stored in JSON, with lists instead of tuples."""
        return json.loads(json.dumps(self.statistic.result(state)))

    def _checked(self, state: bytes) -> bytes:
        most = self.statistic.max_bytes
        if len(state) > most:
            raise DataError(
                f"the statistic {type(self.statistic).__name__} of {self.name} has a state of {len(state)} "
                f"bytes, but at most {most} bytes are allowed",
                "change the operator's statistic so that its state is bounded, or raise its `max_bytes`",
            )
        return state


def measure_mergeable(
    rows: DataFrame, statistics: Mapping[str, tuple[Column, MeasuredStatistic]]
) -> dict[str, object]:
    """Returns the results of several statistics by name, computed in one pass over `rows`.

    Args:
        statistics: maps names to (expression over `rows`, statistic of the expression).

    Raises:
        DataError: a state is larger than its statistic allows.
    """
    if not statistics:
        return {}
    measured = tuple(statistic for _, statistic in statistics.values())
    columns = [
        value.cast(_SPARK_TYPES[statistic.kind]).alias(f"value_{index}")
        for index, (value, statistic) in enumerate(statistics.values())
    ]
    states = rows.select(*columns).mapInArrow(partial(_measure_batches, measured), _SCHEMA)
    merged = states.repartition(F.col("statistic")).mapInArrow(partial(_merge_states, measured), _SCHEMA)
    by_index: dict[int, bytes] = {row["statistic"]: bytes(row["state"]) for row in merged.collect()}
    return {
        name: statistic.result(by_index[index] if index in by_index else statistic.merge([]))
        for index, (name, (_, statistic)) in enumerate(statistics.items())
    }


def _measure_batches(
    statistics: tuple[MeasuredStatistic, ...], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Measures the rows of one task. Column i of a batch has the values of statistic i."""
    states: dict[int, bytes] = {}
    for batch in batches:
        for index, statistic in enumerate(statistics):
            values = batch.column(index)
            values = pc.list_flatten(values) if statistic.kind in LISTS else values
            values = values.drop_null()
            state = statistic.measure(values, np.ones(len(values), np.int64))
            states[index] = statistic.merge([states[index], state] if index in states else [state])
    yield _as_batch(states)


def _merge_states(
    statistics: tuple[MeasuredStatistic, ...], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Merges the states of one task. The task has all states of a statistic, or none."""
    states: dict[int, bytes] = {}
    for batch in batches:
        for row in batch.to_pylist():
            index, state = row["statistic"], row["state"]
            states[index] = statistics[index].merge([states[index], state] if index in states else [state])
    yield _as_batch(states)


def _as_batch(states: Mapping[int, bytes]) -> pa.RecordBatch:
    arrays = [pa.array(list(states), pa.int32()), pa.array(list(states.values()), pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, ["statistic", "state"])
