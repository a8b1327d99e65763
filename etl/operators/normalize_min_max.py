"""NormalizeMinMax: scales numbers so that the numbers of the training rows are between 0 and 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from conf.errors import DataError
from conf.lazy_imports import F
from etl.ops.arrays import as_doubles, bounded_array, bounded_column, from_doubles
from etl.ops.base import Operator, RowWise, Step, Type
from etl.ops.tables import LocalTables
from etl.ops.training_statistics import Need, Statistics, extremes

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class FittedNormalizeMinMax(RowWise):
    """The fitted step of the operator `normalize_min_max`."""

    name: ClassVar[str] = "normalize_min_max"
    min: float = 0.0
    span: float = 1.0

    def expression(self, *values: Column) -> Column:
        """Returns the Spark expression of the output."""
        return bounded_column((values[0].cast("double") - self.min) / self.span)

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """Returns one Arrow array per output."""
        numbers, nulls = as_doubles(values[0])
        with np.errstate(over="ignore"):
            scaled = bounded_array((numbers - self.min) / self.span)
        return [from_doubles(scaled, nulls)]


class NormalizeMinMax(Operator):
    """Computes (x - min) / (max - min), with the minimum and maximum of the training rows. Null stays null.

    Results are between 0 and 1 for training rows, but may be below 0 or above 1 for other rows. If all
    training rows have the same value, max - min is 0 and is replaced by 1. Results outside the range of
    float32 are clipped to this range.

    | in   | out (training rows 2 to 6) |
    |------|----------------------------|
    | 3    | 0.25                       |
    | 10   | 2.0                        |
    | null | null                       |
    """

    name: ClassVar[str] = "normalize_min_max"
    page: ClassVar[str] = "numbers"
    needs: ClassVar[Need] = "aggregates"

    def aggregates(self, value: Column, kind: Type) -> dict[str, Column]:
        """Returns named Spark aggregates of the input `value`, to be computed over the training rows."""
        return {"min": F.min(value.cast("double")), "max": F.max(value.cast("double"))}

    def aggregate_values(self, values: pa.Array, kind: Type) -> dict[str, Any]:
        """Returns the statistics of `aggregates`, computed from an Arrow array of all training rows."""
        return extremes(values.cast(pa.float64(), safe=False))

    def aggregates_of_counts(self, values: pa.Array, counts: np.ndarray, kind: Type) -> dict[str, Any]:
        """Returns the statistics of `aggregates`, computed from value counts of all training rows."""
        return self.aggregate_values(values, kind)

    def fit(self, step: Step, statistics: Statistics) -> FittedNormalizeMinMax:
        """Returns the fitted step."""
        least, most = statistics.aggregates["min"], statistics.aggregates["max"]
        if least is None:
            raise DataError(
                f"normalize_min_max cannot be fitted on {step.inputs[0]}: "
                "the column is null in all training rows",
                f"add `fill` before `normalize_min_max`, or remove {step.inputs[0]} from features",
            )
        if not math.isfinite(most - least):
            raise DataError(
                f"normalize_min_max cannot be fitted on {step.inputs[0]}: "
                f"the range from {least} to {most} is too large for a double",
                "put `clip` before `normalize_min_max`",
            )
        return FittedNormalizeMinMax(step.inputs, step.outputs, least, (most - least) or 1.0)
