"""Normalize: scales numbers to mean 0 and variance 1 over the training rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from conf.errors import DataError
from etl.ops.arrays import as_doubles, bounded_array, bounded_column, from_doubles
from etl.ops.base import Operator, RowWise, Step
from etl.ops.tables import LocalTables
from etl.ops.training_statistics import Need, Statistics

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class FittedNormalize(RowWise):
    """The fitted step of the operator `normalize`."""

    name: ClassVar[str] = "normalize"
    mean: float = 0.0
    std: float = 1.0

    def expression(self, *values: Column) -> Column:
        """Returns the Spark expression of the output."""
        return bounded_column((values[0].cast("double") - self.mean) / self.std)

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """Returns one Arrow array per output."""
        numbers, nulls = as_doubles(values[0])
        with np.errstate(over="ignore"):
            scaled = bounded_array((numbers - self.mean) / self.std)
        return [from_doubles(scaled, nulls)]


class Normalize(Operator):
    """Computes (x - mean) / std, with the mean and population standard deviation of the training rows.

    Null stays null. If all training rows have the same value, std is 0 and is replaced by 1. Mean and std are
    computed exactly, but from values that are rounded to multiples of 2**-24 (6e-8). If the training rows
    contain a number whose absolute value is 2**69 (5.9e20) or more, fitting raises DataError. In this case,
    put `clip` or `log1p` before `normalize`. All 64-bit integers are below this limit. Results outside the
    range of float32 are clipped to this range.

    | in   | out (mean 2, std 0.5) |
    |------|-----------------------|
    | 3    | 2.0                   |
    | null | null                  |
    """

    name: ClassVar[str] = "normalize"
    page: ClassVar[str] = "numbers"
    needs: ClassVar[Need] = "moments"

    def fit(self, step: Step, statistics: Statistics) -> FittedNormalize:
        """Returns the fitted step."""
        moments = statistics.moments
        if moments is None or moments.rows == 0:
            raise DataError(
                f"normalize cannot be fitted on {step.inputs[0]}: the column is null in all training rows",
                f"add `fill` before `normalize`, or remove {step.inputs[0]} from features",
            )
        return FittedNormalize(step.inputs, step.outputs, moments.mean, moments.std or 1.0)
