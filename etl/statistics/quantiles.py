"""Exact quantiles of many columns. Values are counted and sorted by all tasks; no task needs all values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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


def quantile_position(probability: float, values: int) -> int:
    """Returns the position of a quantile among `values` sorted values, counted from 1.

    The position is ceil(probability * values), and at least 1. The product is computed from the decimal
    notation of the probability, so 0.07 of 100 values is 7, although 0.07 * 100 is above 7 in floating point.
    """
    share = Fraction(str(probability)) * values
    return max(1, -(-share.numerator // share.denominator))


def quantiles_of_counts(
    parts: Iterable[tuple[pa.Array, np.ndarray]], probabilities: Sequence[float]
) -> list[float]:
    """Returns the quantiles of the (values, counts) of several parts; an empty list if there are no values.

    The quantile of the probability p is the smallest value v such that at least p of the values are <= v.
    """
    values, weights = np.zeros(0), np.zeros(0, np.int64)
    for new_values, counts in parts:
        numbers = new_values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False) + 0.0  # no -0.0
        values, position = np.unique(np.concatenate([values, numbers]), return_inverse=True)
        # Weights are doubles, exact for counts up to 2**53.
        weights = np.bincount(position, np.concatenate([weights, counts]), len(values)).astype(np.int64)
    if not len(values):
        return []
    until = np.cumsum(weights)
    positions = [quantile_position(probability, int(until[-1])) for probability in probabilities]
    return [float(value) for value in values[np.searchsorted(until, positions)]]


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
