"""FillMedian: replaces null by the median of the training rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import DataError
from conf.lazy_imports import F
from etl.ops.base import Operator, RowWise, Step
from etl.ops.tables import LocalTables
from etl.ops.training_statistics import Need, Statistics

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class FittedFillMedian(RowWise):
    """The fitted step of the operator `fill_median`."""

    name: ClassVar[str] = "fill_median"
    median: float = 0.0

    def expression(self, *values: Column) -> Column:
        """Returns the Spark expression of the output."""
        return F.coalesce(values[0].cast("double"), F.lit(self.median))

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """Returns one Arrow array per output."""
        return [pc.fill_null(values[0].cast(pa.float64(), safe=False), self.median)]


class FillMedian(Operator):
    """Replaces null by the lower median of the column's values in the training rows.

    The lower median is the smallest value v such that at least half of the values are <= v. It is computed
    exactly, and is always a value of the column. If a column is null in all training rows, fitting raises
    DataError.

    | in   | out (training rows 1 2 7 9) |
    |------|-----------------------------|
    | null | 2.0                         |
    | 5    | 5.0                         |
    """

    name: ClassVar[str] = "fill_median"
    page: ClassVar[str] = "numbers"
    needs: ClassVar[Need] = "quantiles"

    def probabilities(self) -> tuple[float, ...]:
        """Returns 0.5, because the median is the 0.5 quantile."""
        return (0.5,)

    def fit(self, step: Step, statistics: Statistics) -> FittedFillMedian:
        """Returns the fitted step."""
        if not statistics.quantiles:
            raise DataError(
                f"fill_median cannot be fitted on {step.inputs[0]}: the column is null in all training rows",
                f"use `fill` with a value instead, or remove {step.inputs[0]} from features; for a column "
                "of `users` or `items`, check that this table has rows for the keys of the log",
            )
        return FittedFillMedian(step.inputs, step.outputs, statistics.quantiles[0.5])
