"""Exact mean and variance of many columns in one pass, independent of the order of rows and partitions.

Floating-point sums depend on the order of addition. But statistics are part of digests, so they must be
reproducible. So values are rounded to multiples of 2**-24 (6e-8) and summed exactly, as integers. At the end,
mean and variance are computed from these sums as exact fractions.

Sums of squares need more digits than Spark's decimal type has. So a number x is divided into three parts of
31 bits: in units of 2**-24, x is upper * 2**62 + high * 2**31 + low. The upper part of numbers below 2**38 is
0. Each product of two parts is divided into two halves. The parts and these halves are summed separately.
Within a Spark partition they are summed as 64-bit integers, which cannot overflow. The sums of all partitions
are then added as decimals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from conf.errors import DataError
from conf.lazy_pyspark import F
from etl.ops.training_statistics import Moments

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_UNITS = 2**24
_LIMIT = 2.0**69  # below it, the upper part fits in 31 bits; all 64-bit integers are below it
_UPPER = 2.0**38  # unit of the upper part: 2**62 units of 2**-24
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
    # Several selects, because in a single one Spark would repeat the expression of a value at each of its
    # dozens of uses.
    reals = rows.select(*(value.cast("double").alias(f"real_{i}") for i, value in enumerate(values.values())))
    # A cast rounds towards zero, so the remainder has the sign of the value, and no digit is lost.
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
        """Returns the number of rows, and the mean and standard deviation of their values."""
        return _moments(self.rows, self.total, self.squares)


def sums_of_counts(name: str, values: np.ndarray, counts: np.ndarray) -> ExactSums:
    """Returns the exact sums of n different values, of which values[i] occurs counts[i] times.

    Args:
        name: what the values are, for the error message.
        values: (n,) float64, the different values.
        counts: (n,) int64, how often each value occurs.

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
        """Returns the exact sum of numbers[i] * counts[i].

        Each half of a number has at most 31 bits, so its product with a count fits into 64 bits. The sum of
        the products of fewer than 2**31 rows fits, too. Otherwise they are added as Python integers.
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
    """Returns (h, l) with number = h * 2**31 + l. A number of 62 bits has halves of 31 bits; h is signed."""
    return F.shiftright(number, _HALF_BITS), number.bitwiseAND(F.lit(_HALF - 1))


def _moments(rows: int, total: int, squares: int) -> Moments:
    if rows == 0:
        return Moments(0, 0.0, 0.0)
    mean = Fraction(total, rows * _UNITS)
    variance = Fraction(rows * squares - total * total, rows * rows * _UNITS * _UNITS)
    return Moments(rows, float(mean), math.sqrt(variance))
