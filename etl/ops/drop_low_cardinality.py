"""DropLowCardinality: leaves out columns that hardly vary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
from pydantic import Field
from pyspark.sql import Column
from pyspark.sql import functions as F

from etl.ops.base import NUMBERS, Need, Operator, RowWise, Statistics, Step, Type
from etl.ops.parameters import Count
from etl.ops.tables import LocalTables


@dataclass(frozen=True)
class FittedDropLowCardinality(RowWise):
    """A fitted `drop_low_cardinality`."""

    name: ClassVar[str] = "drop_low_cardinality"
    size: int | None = None
    distinct: int = 0
    min_cardinality: int = 2

    def expression(self, *values: Column) -> Column:
        """The Spark expression of the output."""
        return values[0]

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """The outputs as Arrow arrays, one for each."""
        return [values[0]]

    @property
    def cardinality(self) -> int | None:
        """Embedding rows of the ids, reserved ids included; None without ids."""
        return self.size

    @property
    def kept(self) -> tuple[str, ...]:
        """The outputs that become features."""
        return self.outputs if self.distinct >= self.min_cardinality else ()


class DropLowCardinality(Operator):
    """Leaves out the columns with fewer than `min_cardinality` distinct values in training.

    Null does not count. Columns that are left out are no features of the workflow version. An extension keeps
    the choice.

    | training rows | distinct | feature (min_cardinality=2) |
    |---------------|----------|-----------------------------|
    | a b a         | 2        | stays                       |
    | a a null      | 1        | is left out                 |
    | null null     | 0        | is left out                 |
    """

    name: ClassVar[str] = "drop_low_cardinality"
    needs: ClassVar[Need] = "aggregates"
    keeps_ids: ClassVar[bool] = True
    takes: ClassVar[tuple[Type, ...]] = (*NUMBERS, "string")
    min_cardinality: Count = Field(
        default=2,
        description="Smallest number of distinct values in the training rows with which a column stays.",
    )

    def gives(self, taken: Type) -> Type:
        """Type of the output, from the type of the input."""
        return taken

    def aggregates(self, value: Column, kind: Type) -> dict[str, Column]:
        """Name → aggregate over the training rows of one input."""
        return {"distinct": F.count_distinct(value)}

    def fit(self, step: Step, statistics: Statistics) -> FittedDropLowCardinality:
        """The fitted step."""
        return FittedDropLowCardinality(
            step.inputs,
            step.outputs,
            statistics.cardinality,
            statistics.aggregates["distinct"],
            self.min_cardinality,
        )
