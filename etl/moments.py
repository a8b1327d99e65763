"""Exact mean and variance of many columns in one pass, whatever the order of rows and partitions.

Floating-point sums depend on their order, and statistics enter digests. So values are rounded to multiples of
2**-24 (6e-8) and summed as whole decimals, which is exact; the division comes last, on whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from conf.errors import DataError
from etl.ops.base import Moments

_UNITS = 2**24
_LIMIT = 2.0**38  # beyond it, squares of units no longer fit decimal(38)


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
    aggregates: list[Column] = []
    for index, value in enumerate(values.values()):
        real = value.cast("double")
        units = F.round(real * _UNITS).cast("decimal(20,0)")
        aggregates += [
            F.count(real).alias(f"rows_{index}"),
            F.sum(units).alias(f"sum_{index}"),
            F.sum(units * units).alias(f"squares_{index}"),
            F.sum(F.when(F.isnan(real) | (F.abs(real) >= _LIMIT), 1).otherwise(0)).alias(f"unfit_{index}"),
        ]
    totals = rows.agg(*aggregates).first()
    found = {}
    for index, name in enumerate(values):
        if totals is None or totals[f"unfit_{index}"]:
            raise DataError(
                f"{name} holds {totals and totals[f'unfit_{index}']} values that are NaN or at least 2**38",
                "put clip or log1p before normalize",
            )
        found[name] = _moments(
            totals[f"rows_{index}"], int(totals[f"sum_{index}"] or 0), int(totals[f"squares_{index}"] or 0)
        )
    return found


def _moments(rows: int, total: int, squares: int) -> Moments:
    if rows == 0:
        return Moments(0, 0.0, 0.0)
    mean = Fraction(total, rows * _UNITS)
    variance = Fraction(rows * squares - total * total, rows * rows * _UNITS * _UNITS)
    return Moments(rows, float(mean), math.sqrt(variance))
