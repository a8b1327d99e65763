"""Exact quantiles of many columns. Values are counted and sorted by all tasks; no task needs all values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from conf.lazy_pyspark import F, Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# (index of a column, Spark partition, position) of a quantile. The quantile is the value at this position
# among the column's sorted values in this Spark partition, counted from 1.
_Target = tuple[int, int, int]

_HELD_VALUES = 4_000_000
# Bits of a range of doubles: sign, exponent and 8 bits of the significand. A range has 0.4% of its numbers.
_RANGE_BITS = 20
_RANGES = 1 << _RANGE_BITS


def quantile_position(probability: float, values: int) -> int:
    """Returns the position of a quantile among `values` sorted values, counted from 1.

    The position is ceil(probability * values), and at least 1. The product is computed from the decimal
    notation of the probability, so 0.07 of 100 values is 7, although 0.07 * 100 is above 7 in floating point.
    """
    share = Fraction(str(probability)) * values
    return max(1, -(-share.numerator // share.denominator))


def quantiles_of_counts(
    parts: Callable[[], Iterable[tuple[pa.Array, np.ndarray]]], probabilities: Sequence[float]
) -> list[float]:
    """Returns the quantiles of the (values, counts) of several parts; an empty list if there are no values.

    The quantile of the probability p is the smallest value v such that at least p of the values are <= v. If
    there are more than _HELD_VALUES values, they are not held in memory, but read twice. The first pass
    counts the values of each range. The second pass collects only the ranges that contain a quantile.

    Args:
        parts: returns the parts each time it is called.
        probabilities: the probabilities of the quantiles.
    """
    held: list[tuple[np.ndarray, np.ndarray]] = []
    size = 0
    for part in _numbers(parts):
        held.append(part)
        size += len(part[0])
        if size > _HELD_VALUES:
            break
    else:
        values, weights = _merged(held)
        until = np.cumsum(weights)
        return [float(values[np.searchsorted(until, p)]) for p in _positions(weights, probabilities)]
    held.clear()
    in_range = np.zeros(_RANGES, np.int64)
    for values, counts in _numbers(parts):
        in_range += np.bincount(_ranges(values), counts, _RANGES).astype(np.int64)
    positions = _positions(in_range, probabilities)
    until = np.cumsum(in_range)
    ranges = np.searchsorted(until, positions)
    is_wanted = np.zeros(_RANGES, bool)
    is_wanted[ranges] = True
    for values, counts in _numbers(parts):
        chosen = is_wanted[_ranges(values)]
        held.append((values[chosen], counts[chosen]))
    values, weights = _merged(held)
    # Number of values before each collected value: those of other ranges, and those collected before it.
    left_out = np.cumsum(np.where(is_wanted, 0, in_range))[_ranges(values)]
    reached = left_out + np.cumsum(weights)
    return [float(values[np.searchsorted(reached, position)]) for position in positions]


def _numbers(
    parts: Callable[[], Iterable[tuple[pa.Array, np.ndarray]]],
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the values of each part as doubles, without -0.0, and their counts."""
    for values, counts in parts():
        yield values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False) + 0.0, counts


def _merged(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the different values of some parts in ascending order, and the sum of the counts of each."""
    if not parts:
        return np.zeros(0), np.zeros(0, np.int64)
    values, position = np.unique(np.concatenate([part[0] for part in parts]), return_inverse=True)
    # Weights are doubles, exact for counts up to 2**53.
    weights = np.bincount(position, np.concatenate([part[1] for part in parts]), len(values))
    return values, weights.astype(np.int64)


def _positions(weights: np.ndarray, probabilities: Sequence[float]) -> list[int]:
    """Returns the positions of the quantiles; an empty list if there are no values."""
    total = int(weights.sum())
    return [quantile_position(probability, total) for probability in probabilities] if total else []


def _ranges(values: np.ndarray) -> np.ndarray:
    """Returns the index of the range of each of n doubles: its first bits, in the order of the numbers."""
    bits = values.view(np.int64)
    ordered = np.where(bits < 0, ~bits, bits ^ np.int64(-(2**63))).view(np.uint64)
    return (ordered >> np.uint64(64 - _RANGE_BITS)).astype(np.int64)


def measure_quantiles(
    rows: DataFrame, wanted: Mapping[str, tuple[Column, Sequence[float]]]
) -> dict[str, dict[float, float]]:
    """Returns the quantiles of each expression, as a dictionary from probabilities to values.

    The quantile of the probability p is the smallest value v such that at least p of the values are <= v.
    Nulls are ignored. The dictionary is empty if all values are null. The driver collects one number per task
    and column.

    Args:
        wanted: maps names to (expression over `rows`, probabilities). The result has the same names.
    """
    if not wanted:
        return {}
    cells = F.array(
        *(
            F.struct(F.lit(index).alias("column"), value.cast("double").alias("value"))
            for index, (value, _) in enumerate(wanted.values())
        )
    )
    counted = (
        rows.select(F.explode(cells).alias("cell"))
        .select("cell.column", "cell.value")
        .where(F.col("value").isNotNull())
        .groupBy("column", "value")
        .agg(F.count(F.lit(1)).alias("count"))
    )
    ranged = (
        counted.repartitionByRange("column", "value").withColumn("part", F.spark_partition_id()).persist()
    )
    targets: dict[tuple[str, float], _Target] = {}
    try:
        parts = ranged.groupBy("column", "part").agg(F.sum("count").alias("count")).collect()
        for index, (name, (_, probabilities)) in enumerate(wanted.items()):
            column_parts = sorted((row["part"], row["count"]) for row in parts if row["column"] == index)
            for probability in probabilities if column_parts else ():
                targets[name, probability] = index, *_place(column_parts, probability)
        values = _values_at(ranged, list(targets.values())) if targets else []
    finally:
        ranged.unpersist()
    quantiles: dict[str, dict[float, float]] = {name: {} for name in wanted}
    for (name, probability), quantile in zip(targets, values, strict=True):
        quantiles[name][probability] = quantile
    return quantiles


def _place(parts: Sequence[tuple[int, int]], probability: float) -> tuple[int, int]:
    """Returns the Spark partition of a quantile, and its position there, counted from 1.

    `parts` are (Spark partition, number of the column's values in it), in the order of values.
    """
    position = quantile_position(probability, sum(count for _, count in parts))
    for part, count in parts:
        if position <= count:
            return part, position
        position -= count
    raise ValueError(f"internal error, please report: no quantile of the probability {probability}")


def _values_at(ranged: DataFrame, targets: Sequence[_Target]) -> list[float]:
    """Returns the value of each target.

    `ranged` is a frame with the columns column, value, count, part. `column` is the index of a column, and
    `part` is the index of the Spark partition.
    """
    positions = ranged.sparkSession.createDataFrame(
        [(number, *target) for number, target in enumerate(targets)],
        "target int, column int, part int, position long",
    )
    until = Window.partitionBy("target").orderBy("value").rowsBetween(Window.unboundedPreceding, 0)
    running = ranged.join(F.broadcast(positions), ["column", "part"]).withColumn(
        "until", F.sum("count").over(until)
    )
    reached = (
        running.where(F.col("until") >= F.col("position"))
        .groupBy("target")
        .agg(F.min("value").alias("value"))
    )
    values = {row["target"]: row["value"] for row in reached.collect()}
    return [values[number] for number in range(len(targets))]
