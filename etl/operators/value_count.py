"""ValueCount: stores the minimum and maximum length of lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from conf.lazy_imports import F
from etl.operators.data_stats import FittedDataStats
from etl.ops.base import LISTS, Operator, Step, Type
from etl.ops.training_statistics import Need, Statistics, extremes, merge_extremes

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class FittedValueCount(FittedDataStats):
    """The fitted step of the operator `value_count`."""

    name: ClassVar[str] = "value_count"


class ValueCount(Operator):
    """Finds the minimum and maximum length of a column's lists in the training rows.

    Both numbers are stored in the workflow. Use the maximum to choose the length of a multi-hot input of
    fixed length. Nulls are ignored. The operator does not change the column.

    | in        | stored (training rows [1], [1, 2, 3], null) | out    |
    |-----------|---------------------------------------------|--------|
    | [1, 2]    | min 1, max 3                                | [1, 2] |
    """

    name: ClassVar[str] = "value_count"
    page: ClassVar[str] = "lists"
    needs: ClassVar[Need] = "aggregates"
    keeps_ids: ClassVar[bool] = True
    takes: ClassVar[tuple[Type, ...]] = LISTS

    def gives(self, taken: Type) -> Type:
        """Returns the type of the output column for an input column of the type `taken`."""
        return taken

    def aggregates(self, value: Column, kind: Type) -> dict[str, Column]:
        """Returns named Spark aggregates of the input `value`, to be computed over the training rows."""
        length = F.when(value.isNotNull(), F.size(value))
        return {"min": F.min(length), "max": F.max(length)}

    def aggregate_values(self, values: pa.Array, kind: Type) -> dict[str, Any]:
        """Returns the statistics of `aggregates`, computed from an Arrow array of all training rows."""
        return extremes(pc.list_value_length(values))

    def merge_aggregates(self, first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
        """Merges the statistics of two sets of rows. It is called only for columns of lists."""
        return merge_extremes(first, second)

    def fit(self, step: Step, statistics: Statistics) -> FittedValueCount:
        """Returns the fitted step."""
        return FittedValueCount(
            step.inputs, step.outputs, statistics.cardinality, dict(statistics.aggregates)
        )
