"""DataStats: computes statistics of columns without changing them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.lazy_imports import F
from etl.ops.base import LISTS, NUMBERS, Operator, RowWise, Step, Type
from etl.ops.tables import LocalTables
from etl.ops.training_statistics import Need, Statistics, count_distinct, extremes, merge_extremes

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class FittedDataStats(RowWise):
    """The fitted step of the operator `data_stats`."""

    name: ClassVar[str] = "data_stats"
    takes_codes: ClassVar[bool] = True
    size: int | None = None
    measured: Mapping[str, Any] = field(default_factory=dict)

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


class DataStats(Operator):
    """Computes statistics of each column over the training rows, and stores them in the workflow.

    The operator does not change the columns.

    The type of a column determines which statistics are stored:

    | type   | number of rows and nulls | number of distinct values | min and max |
    |--------|--------------------------|---------------------------|-------------|
    | number | yes                      | yes                       | of values   |
    | string | yes                      | yes                       | of lengths  |
    | list   | yes                      | no                        | of lengths  |
    """

    name: ClassVar[str] = "data_stats"
    page: ClassVar[str] = "columns"
    needs: ClassVar[Need] = "aggregates"
    keeps_ids: ClassVar[bool] = True
    takes: ClassVar[tuple[Type, ...]] = (*NUMBERS, "string", *LISTS)

    def gives(self, taken: Type) -> Type:
        """Returns the type of the output column for an input column of the type `taken`."""
        return taken

    def aggregates(self, value: Column, kind: Type) -> dict[str, Column]:
        """Returns named Spark aggregates of the input `value`, to be computed over the training rows."""
        measured = {"rows": F.count(F.lit(1)), "nulls": F.sum(value.isNull().cast("bigint"))}
        if kind not in LISTS:
            measured["distinct"] = F.count_distinct(value)
        sized = value if kind in NUMBERS else F.length(value) if kind == "string" else F.size(value)
        present = F.when(value.isNotNull(), sized)
        return measured | {"min": F.min(present), "max": F.max(present)}

    def aggregate_values(self, values: pa.Array, kind: Type) -> dict[str, Any]:
        """Returns the statistics of `aggregates`, computed from an Arrow array of all training rows."""
        measured: dict[str, Any] = {"rows": len(values), "nulls": values.null_count}
        if kind in LISTS:
            return measured | extremes(pc.list_value_length(values))
        measured["distinct"] = count_distinct(values)
        return measured | extremes(values if kind in NUMBERS else pc.utf8_length(values))

    def aggregates_of_counts(self, values: pa.Array, counts: np.ndarray, kind: Type) -> dict[str, Any]:
        """Returns the statistics of `aggregates`, computed from value counts of all training rows."""
        nulls = values.is_null().to_numpy(zero_copy_only=False)
        measured = self.aggregate_values(values, kind)
        return measured | {"rows": int(counts.sum()), "nulls": int(counts[nulls].sum())}

    def merge_aggregates(self, first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
        """Merges the statistics of two sets of rows. It is called only for columns of lists."""
        added = {name: first[name] + second[name] for name in ("rows", "nulls")}
        return added | merge_extremes(first, second)

    def fit(self, step: Step, statistics: Statistics) -> FittedDataStats:
        """Returns the fitted step."""
        return FittedDataStats(step.inputs, step.outputs, statistics.cardinality, dict(statistics.aggregates))
