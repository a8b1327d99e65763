"""Bucketize: replaces a number by the id of the range that contains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field, field_validator

from conf.lazy_pyspark import F
from etl.ops.base import Operator, RowWise, Step, Type
from etl.ops.doubles import as_doubles
from etl.ops.tables import LocalTables
from etl.ops.training_statistics import Statistics
from storage.feature_spec import NULL_ID, NUM_RESERVED_IDS

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class FittedBucketize(RowWise):
    """The fitted step of the operator `bucketize`."""

    name: ClassVar[str] = "bucketize"
    boundaries: tuple[float, ...] = ()

    def expression(self, *values: Column) -> Column:
        """Returns the Spark expression of the output."""
        number = values[0].cast("double")
        bucket = F.lit(0)
        for boundary in self.boundaries:
            bucket = bucket + (number >= boundary).cast("int")
        return F.when(number.isNull(), F.lit(NULL_ID)).otherwise(bucket + NUM_RESERVED_IDS).cast("bigint")

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """Returns one Arrow array per output."""
        numbers, nulls = as_doubles(values[0])
        ids = np.searchsorted(self.boundaries, numbers, side="right") + NUM_RESERVED_IDS
        return [pa.array(np.where(nulls, NULL_ID, ids), pa.int64())]

    @property
    def cardinality(self) -> int:
        """Returns the number of embedding rows for the output ids, including the rows of reserved ids."""
        return NUM_RESERVED_IDS + len(self.boundaries) + 1

    @classmethod
    def from_state(cls, inputs: Sequence[str], outputs: Sequence[str], state: Any) -> FittedBucketize:
        """Creates the fitted step from stored JSON values."""
        return cls(tuple(inputs), tuple(outputs), tuple(state["boundaries"]))


class Bucketize(Operator):
    """Replaces a number by the id of the range that contains it.

    `boundaries` are the limits between the ranges, in ascending order. A limit belongs to the range above it.
    n limits define n + 1 ranges, with the ids 3, 4, and so on. Null gets NULL_ID (1).

    | in   | out (boundaries 0, 10) |
    |------|------------------------|
    | -1   | 3                      |
    | 0    | 4                      |
    | 9.9  | 4                      |
    | 10   | 5                      |
    | null | 1 (NULL_ID)            |
    """

    name: ClassVar[str] = "bucketize"
    page: ClassVar[str] = "ids"
    makes_ids: ClassVar[bool] = True
    boundaries: tuple[float, ...] = Field(
        min_length=1,
        strict=False,
        description="Limits between the ranges, in ascending order. A limit belongs to the range above it.",
    )

    @field_validator("boundaries")
    @classmethod
    def _ascend(cls, boundaries: tuple[float, ...]) -> tuple[float, ...]:
        if any(lower >= upper for lower, upper in pairwise(boundaries)):
            raise ValueError("the limits must ascend, as in bucketize: {boundaries: [0, 1, 10]}")
        return boundaries

    def gives(self, taken: Type) -> Type:
        """Returns the type of the output column for an input column of the type `taken`."""
        return "int"

    def fit(self, step: Step, statistics: Statistics) -> FittedBucketize:
        """Returns the fitted step."""
        return FittedBucketize(step.inputs, step.outputs, self.boundaries)
