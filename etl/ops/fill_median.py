"""FillMedian: the median of the training rows in place of null."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F

from conf.errors import DataError
from etl.ops.base import Need, Operator, RowWise, Statistics, Step
from etl.ops.tables import LocalTables


@dataclass(frozen=True)
class FittedFillMedian(RowWise):
    """A fitted `fill_median`."""

    name: ClassVar[str] = "fill_median"
    median: float = 0.0

    def expression(self, *values: Column) -> Column:
        """The Spark expression of the output."""
        return F.coalesce(values[0].cast("double"), F.lit(self.median))

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """The outputs as Arrow arrays, one for each."""
        return [pc.fill_null(values[0].cast(pa.float64(), safe=False), self.median)]


class FillMedian(Operator):
    """Replaces null by the lower median of the training rows.

    That is the least value that half of them do not exceed. It is exact, and always a value that occurs. A
    column that is null in every training row has no median: DataError.

    | in   | out (training rows 1 2 7 9) |
    |------|-----------------------------|
    | null | 2.0                         |
    | 5    | 5.0                         |
    """

    name: ClassVar[str] = "fill_median"
    needs: ClassVar[Need] = "median"

    def fit(self, step: Step, statistics: Statistics) -> FittedFillMedian:
        """The fitted step."""
        if statistics.median is None:
            raise DataError(
                f"fill_median cannot be fitted on {step.inputs[0]}: it has no value in the training rows",
                f"use fill with a value, or leave {step.inputs[0]} out of features",
            )
        return FittedFillMedian(step.inputs, step.outputs, statistics.median)
