"""Bucketize: replaces a number, or each number of a list, by the id of the range that contains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from conf.lazy_imports import F
from etl.ops.arrays import as_doubles
from etl.ops.base import NUMBERS, Operator, RowWise, Step, Type
from etl.ops.tables import LocalTables
from etl.ops.training_statistics import Statistics
from etl.raw.text_values import over_elements
from storage.feature_spec import NULL_ID, NUM_RESERVED_IDS

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class FittedBucketize(RowWise):
    """The fitted step of the operator `bucketize`."""

    name: ClassVar[str] = "bucketize"
    boundaries: tuple[float, ...] = ()
    lists: bool = False

    def expression(self, *values: Column) -> Column:
        """Returns the Spark expression of the output."""
        return F.transform(values[0], self._id) if self.lists else self._id(values[0])

    def _id(self, value: Column) -> Column:
        number = value.cast("double")
        bucket = F.lit(0)
        for boundary in self.boundaries:
            bucket = bucket + (number >= boundary).cast("int")
        return F.when(number.isNull(), F.lit(NULL_ID)).otherwise(bucket + NUM_RESERVED_IDS).cast("bigint")

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """Returns one Arrow array per output."""
        numbers, nulls = as_doubles(pc.list_flatten(values[0]) if self.lists else values[0])
        ranges = np.searchsorted(self.boundaries, numbers, side="right") + NUM_RESERVED_IDS
        ids = pa.array(np.where(nulls, NULL_ID, ranges), pa.int64())
        return [over_elements(values[0], ids) if self.lists else ids]

    @property
    def cardinality(self) -> int:
        """Returns the number of embedding rows for the output ids, including the rows of reserved ids."""
        return NUM_RESERVED_IDS + len(self.boundaries) + 1

    @classmethod
    def from_state(cls, inputs: Sequence[str], outputs: Sequence[str], state: Any) -> FittedBucketize:
        """Creates the fitted step from stored JSON values."""
        return cls(tuple(inputs), tuple(outputs), tuple(state["boundaries"]), state.get("lists", False))

    def state(self) -> dict[str, Any]:
        """Returns JSON values from which `from_state` creates an equal fitted step.

        The key `lists` exists only for columns of lists. For other columns, the stored values are therefore
        the same as in releases that did not support lists.
        """
        return {"boundaries": self.boundaries, **({"lists": True} if self.lists else {})}


class Bucketize(Operator):
    """Replaces a number by the id of the range that contains it. Lists are replaced element by element.

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
    takes: ClassVar[tuple[Type, ...]] = (*NUMBERS, "ints")
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
        return "ints" if taken == "ints" else "int"

    def fit(self, step: Step, statistics: Statistics) -> FittedBucketize:
        """Returns the fitted step."""
        return FittedBucketize(
            step.inputs, step.outputs, self.boundaries, step.types[step.outputs[0]] == "ints"
        )
