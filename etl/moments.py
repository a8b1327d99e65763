"""Exact mean and variance of many columns in one pass, whatever the order of rows and partitions.

Floating-point sums depend on their order, and statistics enter digests. So values are rounded to multiples of
2**-24 (6e-8) and summed as whole numbers, which is exact; the division comes last, on whole numbers too. Sums of
squares need more digits than a decimal has, so all numbers are summed in halves of 31 bits: as long integers within a
partition, which cannot overflow there, and as decimals over the partitions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from conf.errors import DataError
from etl.ops.base import Moments

_UNITS = 2**24
_LIMIT = 2.0**38  # below it, a value has fewer than 2**62 units
_HALF_BITS = 31
_HALF = 2**_HALF_BITS
# Sums that make up one column's: of the units' halves, and of the halves of their three products.
_SUMS = [
    f"{part}_{half}" for part in ("unit", "high_high", "high_low", "low_low") for half in ("high", "low")
]


def measure_moments(rows: DataFrame, values: Mapping[str, Column]) -> dict[str, Moments]:
    """Moments of several expressions, in one aggregation.

    Args:
        rows: the training rows.
        values: name → numeric expression over `rows`; nulls are left out.

    Raises:
        DataError: a value is NaN, infinite or at least 2**38 in size, so that exact sums would overflow.
    """
    if not values:
        return {}
    # In steps, or a value's whole expression would stand in the plan once for each time that it is used: dozens of times.
    reals = rows.select(*(value.cast("double").alias(f"real_{i}") for i, value in enumerate(values.values())))
    parts = [F.col(f"real_{index}") for index in range(len(values))]
    for index in range(len(values)):
        high, low = _halves(F.rint(F.col(f"real_{index}") * _UNITS).cast("bigint"))
        parts += [high.alias(f"high_{index}"), low.alias(f"low_{index}")]
    aggregates: list[Column] = []
    for index in range(len(values)):
        real, high, low = (F.col(f"{name}_{index}") for name in ("real", "high", "low"))
        halves = [high, low, *_halves(high * high), *_halves(high * low), *_halves(low * low)]
        aggregates += [
            F.count(real).alias(f"rows_{index}"),
            F.sum(F.when(F.isnan(real) | (F.abs(real) >= _LIMIT), 1).otherwise(0)).alias(f"unfit_{index}"),
            *(F.sum(half).alias(f"{name}_{index}") for name, half in zip(_SUMS, halves, strict=True)),
        ]
    of_partitions = reals.select(*parts).groupBy(F.spark_partition_id().alias("partition")).agg(*aggregates)
    sums = [name for name in of_partitions.columns if name != "partition"]
    totals = of_partitions.agg(
        *(F.sum(F.col(name).cast("decimal(20,0)")).alias(name) for name in sums)
    ).first()
    found = {}
    for index, name in enumerate(values):
        if totals is None or totals[f"unfit_{index}"]:
            raise _unfit(name, totals[f"unfit_{index}"] if totals else 0)
        total = {each: int(totals[f"{each}_{index}"] or 0) for each in _SUMS}
        part = {
            name: total[f"{name}_high"] * _HALF + total[f"{name}_low"]
            for name in ("unit", "high_high", "high_low", "low_low")
        }
        squares = part["high_high"] * _HALF**2 + 2 * part["high_low"] * _HALF + part["low_low"]
        found[name] = _moments(int(totals[f"rows_{index}"] or 0), part["unit"], squares)
    return found


@dataclass(frozen=True)
class ExactSums:
    """Rows, and the sums of their values and of the squares, in units of 2**-24. They add up in any order."""

    rows: int = 0
    total: int = 0
    squares: int = 0

    def __add__(self, other: ExactSums) -> ExactSums:
        return ExactSums(self.rows + other.rows, self.total + other.total, self.squares + other.squares)

    def moments(self) -> Moments:
        return _moments(self.rows, self.total, self.squares)


def sums_of_counts(name: str, values: np.ndarray, counts: np.ndarray) -> ExactSums:
    """The sums of (n,) float64 values that occur `counts` times each; NaN is not allowed.

    Raises:
        DataError: as for measure_moments.
    """
    unfit = ~(np.abs(values) < _LIMIT)
    if unfit.any():
        raise _unfit(name, int(counts[unfit].sum()))
    units = np.rint(values * _UNITS).astype(np.int64)
    high, low = units >> _HALF_BITS, units & (_HALF - 1)

    def total(numbers: np.ndarray) -> int:
        """Exact: halves of 31 bits times counts fit 63, and Python's integers take their sum."""
        upper, lower = numbers >> _HALF_BITS, numbers & (_HALF - 1)
        return sum((upper * counts).tolist()) * _HALF + sum((lower * counts).tolist())

    squares = total(high * high) * _HALF**2 + 2 * total(high * low) * _HALF + total(low * low)
    return ExactSums(int(counts.sum()), total(units), squares)


def _unfit(name: str, count: int) -> DataError:
    return DataError(
        f"{name} holds {count} values that are NaN or at least 2**38", "put clip or log1p before normalize"
    )


def _halves(number: Column) -> tuple[Column, Column]:
    """(h, l) with number = h * 2**31 + l, both within 31 bits for a number of 62."""
    return F.shiftright(number, _HALF_BITS), number.bitwiseAND(F.lit(_HALF - 1))


def _moments(rows: int, total: int, squares: int) -> Moments:
    if rows == 0:
        return Moments(0, 0.0, 0.0)
    mean = Fraction(total, rows * _UNITS)
    variance = Fraction(rows * squares - total * total, rows * rows * _UNITS * _UNITS)
    return Moments(rows, float(mean), math.sqrt(variance))
