"""ListSimilarity: computes the similarity of two lists, treated as sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from conf.errors import ConfigError
from conf.lazy_imports import F
from etl.ops.base import LISTS, Operator, RowWise, Step, Type
from etl.ops.tables import LocalTables
from etl.ops.training_statistics import Statistics

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class FittedListSimilarity(RowWise):
    """The fitted step of the operator `list_similarity`."""

    name: ClassVar[str] = "list_similarity"

    def expression(self, *values: Column) -> Column:
        """Returns the Spark expression of the output."""
        left, right = values
        # array_intersect(x, x) removes repeated elements; the RAPIDS accelerator lacks array_distinct.
        sizes = [F.size(F.array_intersect(value, value)) for value in values]
        both = F.size(F.array_intersect(left, right))
        similarity = both / F.sqrt((sizes[0] * sizes[1]).cast("double"))
        # The size of null is -1 or null, depending on a Spark setting. In both cases, the condition is not
        # true.
        return F.when((F.size(left) > 0) & (F.size(right) > 0), similarity)

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """Returns one Arrow array per output."""
        flat = [pc.list_flatten(value) for value in values]
        coded = pa.concat_arrays(flat).dictionary_encode()
        distinct, rows = max(len(coded.dictionary), 1), len(values[0])
        codes = np.split(coded.indices.to_numpy(), [len(flat[0])])
        # The distinct pairs (row, element) of the left and of the right lists.
        sets = [
            np.unique(_rows(lists) * distinct + elements)
            for lists, elements in zip(values, codes, strict=True)
        ]
        counts = [np.bincount(pairs // distinct, minlength=rows) for pairs in sets]
        shared = np.intersect1d(sets[0], sets[1], assume_unique=True)
        both = np.bincount(shared // distinct, minlength=rows)
        sizes = np.sqrt((counts[0] * counts[1]).astype(np.float64))
        nothing = sizes == 0
        return [pa.array(both / np.where(nothing, 1.0, sizes), pa.float64(), mask=nothing)]


def _rows(lists: pa.Array) -> NDArray[np.int64]:
    """Returns, for each element of all lists, the index of the row whose list contains the element."""
    return np.asarray(pc.list_parent_indices(lists).to_numpy(), dtype=np.int64)


class ListSimilarity(Operator):
    """Computes the cosine similarity of two lists, treated as sets: |both| / sqrt(|left| * |right|).

    |left| and |right| are the numbers of distinct elements of the two lists. |both| is the number of distinct
    elements that are in both lists. This similarity of sets is Ochiai's coefficient (1957). The result is
    between 0 and 1, or null if a list is null or empty. The group must have exactly two columns.

    | left      | right     | out   |
    |-----------|-----------|-------|
    | [a, b]    | [b, a]    | 1     |
    | [a, b]    | [b, c]    | 0.5   |
    | [a, a]    | [a]       | 1     |
    | [a]       | [b]       | 0     |
    | []        | [b]       | null  |
    | null      | [b]       | null  |
    """

    name: ClassVar[str] = "list_similarity"
    page: ClassVar[str] = "lists"
    takes: ClassVar[tuple[Type, ...]] = LISTS
    output: str | None = Field(
        default=None, description="Name of the new column. Null: both columns' names, joined by `_sim_`."
    )

    def bind(self, columns: Mapping[str, Type]) -> list[Step]:
        """Returns the unfitted steps that apply the operator to `columns`.

        Raises:
            ConfigError: the operator does not accept these columns.
        """
        self.require_types(columns)
        if len(columns) != 2:
            raise ConfigError(
                f"list_similarity compares two columns, not {list(columns)}",
                "list exactly two columns in features.columns",
            )
        if len(set(columns.values())) > 1:
            raise ConfigError(
                "list_similarity compares two lists of the same type, not "
                + " and ".join(f"{name} ({kind})" for name, kind in columns.items()),
                "convert both columns to the same type before list_similarity",
            )
        output = self.output or "_sim_".join(columns)
        return [Step(self, tuple(columns), (output,), {output: "float"})]

    def fit(self, step: Step, statistics: Statistics) -> FittedListSimilarity:
        """Returns the fitted step."""
        return FittedListSimilarity(step.inputs, step.outputs)
