"""SplitList: splits a string at a separator into a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from conf.lazy_imports import F
from etl.ops.base import Operator, RowWise, Step, Type
from etl.ops.tables import LocalTables
from etl.ops.training_statistics import Statistics
from etl.raw.text_values import literal_pattern, over_elements

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class FittedSplitList(RowWise):
    """The fitted step of the operator `split_list`."""

    name: ClassVar[str] = "split_list"
    separator: str = "|"

    def expression(self, *values: Column) -> Column:
        """Returns the Spark expression of the output."""
        parts = F.split(values[0], literal_pattern(self.separator), -1)
        return F.filter(parts, lambda part: part != "")

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """Returns one Arrow array per output."""
        parts = pc.split_pattern(values[0], self.separator)
        flat = pc.list_flatten(parts)
        kept = pc.not_equal(flat, "")
        if pc.all(kept).as_py() in (True, None):
            return [parts]
        # `counts` has, for each list, the number of its elements that are not empty texts.
        lengths = pc.fill_null(pc.list_value_length(parts), 0).to_numpy(zero_copy_only=False)
        ends = np.cumsum(lengths)
        running = np.concatenate([[0], np.cumsum(kept.to_numpy(zero_copy_only=False))])
        counts = running[ends] - running[ends - lengths]
        shape = pa.array(
            [None if null else [0] * n for n, null in zip(counts, parts.is_null().to_pylist(), strict=True)],
            pa.list_(pa.int8()),
        )
        return [over_elements(shape, flat.filter(kept))]


class SplitList(Operator):
    """Splits strings at `separator` into lists. Empty elements are removed. Null stays null.

    | in      | out (separator="|") |
    |---------|---------------------|
    | a|b|c   | [a, b, c]           |
    | a||b|   | [a, b]              |
    | null    | null                |
    """

    name: ClassVar[str] = "split_list"
    page: ClassVar[str] = "lists"
    takes: ClassVar[tuple[Type, ...]] = ("string",)
    separator: str = Field(default="|", min_length=1, description="Text between two elements of a list.")

    def gives(self, taken: Type) -> Type:
        """Returns the type of the output column for an input column of the type `taken`."""
        return "strings"

    def fit(self, step: Step, statistics: Statistics) -> FittedSplitList:
        """Returns the fitted step."""
        return FittedSplitList(step.inputs, step.outputs, self.separator)
