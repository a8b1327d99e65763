"""DropLowCardinality: removes columns with few distinct values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from conf.lazy_imports import F
from etl.ops.base import NUMBERS, Count, Operator, RowWise, Step, Type
from etl.ops.tables import LocalTables
from etl.ops.training_statistics import Need, Statistics, count_distinct

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class FittedDropLowCardinality(RowWise):
    """The fitted step of the operator `drop_low_cardinality`."""

    name: ClassVar[str] = "drop_low_cardinality"
    size: int | None = None
    distinct: int = 0
    min_cardinality: int = 2

    def expression(self, *values: Column) -> Column:
        """Returns the Spark expression of the output."""
        return values[0]

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """Returns one Arrow array per output."""
        return [values[0]]

    @property
    def cardinality(self) -> int | None:
        """Returns the number of embedding rows that the output ids need; None if the outputs are not ids."""
        return self.size

    @property
    def kept(self) -> tuple[str, ...]:
        """Returns the outputs that remain in the chain. There are none if the column is removed."""
        return self.outputs if self.distinct >= self.min_cardinality else ()


class DropLowCardinality(Operator):
    """Removes columns with fewer than `min_cardinality` distinct values in the training rows.

    Null is not counted as a value. Removed columns are not features of the workflow version. When a workflow
    is extended, removed columns stay removed.

    | training rows | distinct | feature (min_cardinality=2) |
    |---------------|----------|-----------------------------|
    | a b a         | 2        | is kept                     |
    | a a null      | 1        | is removed                  |
    | null null     | 0        | is removed                  |
    """

    name: ClassVar[str] = "drop_low_cardinality"
    page: ClassVar[str] = "columns"
    needs: ClassVar[Need] = "aggregates"
    keeps_ids: ClassVar[bool] = True
    takes: ClassVar[tuple[Type, ...]] = (*NUMBERS, "string")
    min_cardinality: Count = Field(
        default=2,
        description="Minimum number of distinct values in the training rows that a column needs to be kept.",
    )

    def gives(self, taken: Type) -> Type:
        """Returns the type of the output column for an input column of the type `taken`."""
        return taken

    def aggregates(self, value: Column, kind: Type) -> dict[str, Column]:
        """Returns named Spark aggregates of the input `value`, to be computed over the training rows."""
        return {"distinct": F.count_distinct(value)}

    def aggregate_values(self, values: pa.Array, kind: Type) -> dict[str, Any]:
        """Returns the statistics of `aggregates`, computed from an Arrow array of all training rows."""
        return {"distinct": count_distinct(values)}

    def aggregates_of_counts(self, values: pa.Array, counts: np.ndarray, kind: Type) -> dict[str, Any]:
        """Returns the statistics of `aggregates`, computed from value counts of all training rows."""
        return self.aggregate_values(values, kind)

    def fit(self, step: Step, statistics: Statistics) -> FittedDropLowCardinality:
        """Returns the fitted step."""
        return FittedDropLowCardinality(
            step.inputs,
            step.outputs,
            statistics.cardinality,
            statistics.aggregates["distinct"],
            self.min_cardinality,
        )
