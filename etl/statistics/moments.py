"""Computes exact means, variances and quantiles that do not depend on the order of rows and partitions.

Floating-point sums depend on the order of addition. But statistics are part of digests, so they must be
reproducible. Values are therefore rounded to multiples of 2**-24 (6e-8) and summed exactly, as integers. At
the end, mean and variance are computed from these sums as exact fractions.

Sums of squares need more digits than Spark's decimal type has. So a number x is divided into three parts of
31 bits: in units of 2**-24, x is upper * 2**62 + high * 2**31 + low. The upper part of numbers below 2**38 is
0. Each product of two parts is divided into two halves. The parts and these halves are summed separately.
Within a Spark partition, they are summed as 64-bit integers, which cannot overflow. Then the sums of all
partitions are added as decimals.

`measure_mergeable` computes the statistics that operators define themselves. It computes a state from each
batch of values, merges the states of each task, and then merges the states of all tasks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import DataError
from conf.lazy_imports import F, Window
from etl.ops.base import LISTS, Type
from etl.ops.training_statistics import MergeableStatistic, Moments

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_UNITS = 2**24
_LIMIT = 2.0**69  # Numbers below this, such as all 64-bit integers, have an upper part of at most 31 bits.
_UPPER = 2.0**38  # Unit of the upper part: 2**62 units of 2**-24.
_HALF_BITS = 31
_HALF = 2**_HALF_BITS
_PRODUCTS = ("upper_upper", "upper_high", "upper_low", "high_high", "high_low", "low_low")

# The sums of one column: sums of its three parts, and of the halves of their products.
_SUMS = ["upper", "high", "low", *(f"{product}_{half}" for product in _PRODUCTS for half in ("high", "low"))]


def measure_moments(rows: DataFrame, values: Mapping[str, Column]) -> dict[str, Moments]:
    """Computes number, mean and standard deviation of the values of several expressions in one aggregation.

    Args:
        rows: the training rows.
        values: maps names to numeric expressions over `rows`. Nulls are ignored.

    Raises:
        DataError: a value is NaN or infinite, or its absolute value is 2**69 or more.
    """
    if not values:
        return {}
    # Use several selects: in a single select, Spark would repeat the expression of a value at each of its
    # dozens of uses.
    reals = rows.select(*(value.cast("double").alias(f"real_{i}") for i, value in enumerate(values.values())))
    # A cast rounds towards zero. So the remainder has the sign of the value, and the parts add up exactly to
    # the value.
    with_upper = reals.select(
        "*",
        *(
            (F.col(f"real_{index}") / _UPPER).cast("bigint").alias(f"upper_{index}")
            for index in range(len(values))
        ),
    )
    parts = [F.col(name) for name in with_upper.columns]
    for index in range(len(values)):
        rest = F.col(f"real_{index}") - F.col(f"upper_{index}").cast("double") * _UPPER
        high, low = _halves(F.rint(rest * _UNITS).cast("bigint"))
        parts += [high.alias(f"high_{index}"), low.alias(f"low_{index}")]
    aggregates: list[Column] = []
    for index in range(len(values)):
        part_of = {name: F.col(f"{name}_{index}") for name in ("real", "upper", "high", "low")}
        real = part_of["real"]
        pairs = (product.split("_") for product in _PRODUCTS)
        halves = [part_of["upper"], part_of["high"], part_of["low"]]
        halves += [half for first, second in pairs for half in _halves(part_of[first] * part_of[second])]
        aggregates += [
            F.count(real).alias(f"rows_{index}"),
            F.sum(F.when(F.isnan(real) | (F.abs(real) >= _LIMIT), 1).otherwise(0)).alias(f"unfit_{index}"),
            *(F.sum(half).alias(f"{name}_{index}") for name, half in zip(_SUMS, halves, strict=True)),
        ]
    of_partitions = (
        with_upper.select(*parts).groupBy(F.spark_partition_id().alias("partition")).agg(*aggregates)
    )
    sums = [name for name in of_partitions.columns if name != "partition"]
    totals = of_partitions.agg(
        *(F.sum(F.col(name).cast("decimal(20,0)")).alias(name) for name in sums)
    ).first()
    moments = {}
    for index, name in enumerate(values):
        if totals is None or totals[f"unfit_{index}"]:
            raise _unfit(name, totals[f"unfit_{index}"] if totals else 0)
        total = {part: int(totals[f"{part}_{index}"] or 0) for part in _SUMS}
        products = {
            product: total[f"{product}_high"] * _HALF + total[f"{product}_low"] for product in _PRODUCTS
        }
        row_count = int(totals[f"rows_{index}"] or 0)
        moments[name] = ExactSums(row_count, _sum(total), _squares(products)).moments()
    return moments


@dataclass(frozen=True)
class ExactSums:
    """Exact sums over the values of some rows. The sums of different rows can be added in any order.

    Attributes:
        rows: number of rows.
        total: sum of the values, in units of 2**-24.
        squares: sum of the squared values, in units of 2**-48.
    """

    rows: int = 0
    total: int = 0
    squares: int = 0

    def __add__(self, other: ExactSums) -> ExactSums:
        return ExactSums(self.rows + other.rows, self.total + other.total, self.squares + other.squares)

    def moments(self) -> Moments:
        """Returns the number of rows, and the mean and standard deviation of the values."""
        return _moments(self.rows, self.total, self.squares)


def sums_of_counts(name: str, values: np.ndarray, counts: np.ndarray) -> ExactSums:
    """Returns the exact sums of n distinct values, of which values[i] occurs counts[i] times.

    Args:
        name: the name of the values in the error message.
        values: (n,) float64, the distinct values.
        counts: (n,) int64, the number of occurrences of each value.

    Raises:
        DataError: a value is NaN or infinite, or its absolute value is 2**69 or more.
    """
    unfit = ~(np.abs(values) < _LIMIT)
    if unfit.any():
        raise _unfit(name, int(counts[unfit].sum()))
    upper = np.trunc(values / _UPPER)
    units = np.rint((values - upper * _UPPER) * _UNITS).astype(np.int64)
    parts = {"upper": upper.astype(np.int64), "high": units >> _HALF_BITS, "low": units & (_HALF - 1)}

    few_rows = int(counts.sum()) < _HALF

    def total(numbers: np.ndarray) -> int:
        """Returns the exact sum of numbers[i] * counts[i] over all i.

        Each half of a number has at most 31 bits, so its product with a count fits into 64 bits. For fewer
        than 2**31 rows, the sum of the products fits too. For more rows, Python integers are added.
        """
        most, least = (numbers >> _HALF_BITS) * counts, (numbers & (_HALF - 1)) * counts
        if few_rows:
            return int(most.sum()) * _HALF + int(least.sum())
        return sum(most.tolist()) * _HALF + sum(least.tolist())

    products = {name: total(np.multiply(*(parts[part] for part in name.split("_")))) for name in _PRODUCTS}
    sums = {name: total(part) for name, part in parts.items()}
    return ExactSums(int(counts.sum()), _sum(sums), _squares(products))


def _sum(parts: Mapping[str, int]) -> int:
    """Returns the sum of some numbers, in units of 2**-24, from the sums of their three parts."""
    return parts["upper"] * _HALF**2 + parts["high"] * _HALF + parts["low"]


def _squares(products: Mapping[str, int]) -> int:
    """Returns the sum of the squares of some numbers. `products` are the sums of the products of their parts.

    A square is (u * h**2 + v * h + w)**2. Here h is 2**31, and u, v and w are the upper, high and low part of
    a number.
    """
    return (
        products["upper_upper"] * _HALF**4
        + 2 * products["upper_high"] * _HALF**3
        + (2 * products["upper_low"] + products["high_high"]) * _HALF**2
        + 2 * products["high_low"] * _HALF
        + products["low_low"]
    )


def _unfit(name: str, count: int) -> DataError:
    return DataError(
        f"the mean of {name} cannot be computed: {count} values are NaN or infinite, or their absolute value "
        "is 2**69 (5.9e20) or more",
        "put the operator `clip` or `log1p` before `normalize` in the `ops` of this feature",
    )


def _halves(number: Column) -> tuple[Column, Column]:
    """Returns (h, l) with number = h * 2**31 + l.

    Both halves of a number of 62 bits have 31 bits. h has the sign.
    """
    return F.shiftright(number, _HALF_BITS), number.bitwiseAND(F.lit(_HALF - 1))


def _moments(rows: int, total: int, squares: int) -> Moments:
    if rows == 0:
        return Moments(0, 0.0, 0.0)
    mean = Fraction(total, rows * _UNITS)
    variance = Fraction(rows * squares - total * total, rows * rows * _UNITS * _UNITS)
    return Moments(rows, float(mean), math.sqrt(variance))


# The functions below compute exact quantiles of many columns. Each task counts and sorts a part of the
# values, so no task needs all values.

# (index of a column, Spark partition, position) of a quantile. The quantile is the value at this position
# among the column's sorted values in this Spark partition, counted from 1.
_Target = tuple[int, int, int]
_HELD_VALUES = 4_000_000

# Bits that identify a range of doubles: sign, exponent and 8 bits of the significand. The width of a range is
# at most 0.4% of any number in it.
_RANGE_BITS = 20
_RANGES = 1 << _RANGE_BITS


def quantile_position(probability: float, values: int) -> int:
    """Returns the position of a quantile among `values` sorted values, counted from 1.

    The position is ceil(probability * values), and at least 1. The product is computed from the decimal
    notation of the probability. So the position is 7 for the probability 0.07 and 100 values. In floating
    point, 0.07 * 100 is above 7, so the position would be 8.
    """
    share = Fraction(str(probability)) * values
    return max(1, -(-share.numerator // share.denominator))


def quantiles_of_counts(
    parts: Callable[[], Iterable[tuple[pa.Array, np.ndarray]]], probabilities: Sequence[float]
) -> list[float]:
    """Returns quantiles of values that are divided into parts; an empty list if there are no values.

    The quantile of the probability p is the smallest value v such that at least the share p of the values is
    <= v. If there are more than _HELD_VALUES values, two passes read them again instead of keeping them in
    memory. The first pass counts the values of each range. The second pass collects only the ranges that
    contain a quantile.

    Args:
        parts: function that yields (values, counts) for each part. It may be called several times.
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
    # For each collected value, `left_out` is the number of smaller values in ranges that were not collected.
    # `reached` is the number of all values up to and including this one.
    left_out = np.cumsum(np.where(is_wanted, 0, in_range))[_ranges(values)]
    reached = left_out + np.cumsum(weights)
    return [float(values[np.searchsorted(reached, position)]) for position in positions]


def _numbers(
    parts: Callable[[], Iterable[tuple[pa.Array, np.ndarray]]],
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the values of each part as doubles, with 0.0 instead of -0.0, and their counts."""
    for values, counts in parts():
        yield values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False) + 0.0, counts


def _merged(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distinct values of some parts in ascending order, and the sum of the counts of each."""
    if not parts:
        return np.zeros(0), np.zeros(0, np.int64)
    values, position = np.unique(np.concatenate([part[0] for part in parts]), return_inverse=True)
    # np.bincount adds doubles, which are exact for counts up to 2**53.
    weights = np.bincount(position, np.concatenate([part[1] for part in parts]), len(values))
    return values, weights.astype(np.int64)


def _positions(weights: np.ndarray, probabilities: Sequence[float]) -> list[int]:
    """Returns the positions of quantiles among all sorted values; an empty list if there are no values."""
    total = int(weights.sum())
    return [quantile_position(probability, total) for probability in probabilities] if total else []


def _ranges(values: np.ndarray) -> np.ndarray:
    """Returns, for each of n doubles, the index of its range.

    The index consists of the first bits of the double. Some of these bits are inverted, so that larger
    doubles have larger indices.
    """
    bits = values.view(np.int64)
    ordered = np.where(bits < 0, ~bits, bits ^ np.int64(-(2**63))).view(np.uint64)
    return (ordered >> np.uint64(64 - _RANGE_BITS)).astype(np.int64)


def measure_quantiles(
    rows: DataFrame, wanted: Mapping[str, tuple[Column, Sequence[float]]]
) -> dict[str, dict[float, float]]:
    """Returns the quantiles of each expression, as a dictionary from probabilities to values.

    The quantile of the probability p is the smallest value v such that at least the share p of the values is
    <= v. Nulls are ignored. The dictionary is empty if all values are null. The driver collects one number
    per task and column.

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
    """Returns the Spark partition with a quantile, and the quantile's position in it, counted from 1.

    `parts` has a pair for each Spark partition: its number, and how many values of the column it contains.
    No value of a partition is larger than a value of the next partition.
    """
    position = quantile_position(probability, sum(count for _, count in parts))
    for part, count in parts:
        if position <= count:
            return part, position
        position -= count
    raise ValueError(f"internal error, please report: no quantile of the probability {probability}")


def _values_at(ranged: DataFrame, targets: Sequence[_Target]) -> list[float]:
    """Returns the value at each target, which is (index of a column, Spark partition, position).

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


# The code below computes statistics that operators define themselves (MergeableStatistic in
# etl/ops/training_statistics.py).

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
    """Computes the states of all statistics in one task. Column i of a batch has statistic i's values."""
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
    """Merges the states of one task. A task receives all states of a statistic, or none of them."""
    states: dict[int, bytes] = {}
    for batch in batches:
        for row in batch.to_pylist():
            index, state = row["statistic"], row["state"]
            states[index] = statistics[index].merge([states[index], state] if index in states else [state])
    yield _as_batch(states)


def _as_batch(states: Mapping[int, bytes]) -> pa.RecordBatch:
    arrays = [pa.array(list(states), pa.int32()), pa.array(list(states.values()), pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, ["statistic", "state"])
