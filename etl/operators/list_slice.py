"""ListSlice: takes a part of each list, as a list or as a fixed number of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from conf.errors import ConfigError
from conf.lazy_imports import F
from etl.ops.base import LISTS, Fitted, Integer, Operator, Step, Type
from etl.ops.tables import LocalTables, Tables
from etl.ops.training_statistics import Statistics
from storage.feature_spec import PAD_ID

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_LONGEST = 10_000


@dataclass(frozen=True)
class FittedListSlice(Fitted):
    """The fitted step of the operator `list_slice`."""

    name: ClassVar[str] = "list_slice"
    takes_codes: ClassVar[bool] = True
    start: int = 0
    length: int = 1
    columns: bool = False
    size: int | None = None

    @property
    def cardinality(self) -> int | None:
        """Returns the number of embedding rows that the output ids need; None if the outputs are not ids."""
        return self.size

    def apply(
        self, rows: DataFrame, values: Sequence[Column], tables: Tables, tag: str
    ) -> tuple[DataFrame, list[Column]]:
        """Returns `rows` unchanged, and one expression per output."""
        value = values[0]
        if self.columns:
            places = self._places(F.size(value))
            return rows, [
                F.when(
                    value.isNotNull(), F.coalesce(F.get(value, place), F.lit(PAD_ID).cast("bigint"))
                ).otherwise(F.lit(PAD_ID).cast("bigint"))
                for place in places
            ]
        first = (
            F.greatest(F.lit(1), F.size(value) + self.start + 1) if self.start < 0 else F.lit(self.start + 1)
        )
        return rows, [F.slice(value, first, F.lit(self.length))]

    def _places(self, size: Column) -> list[Column]:
        first = F.greatest(F.lit(0), size + self.start) if self.start < 0 else F.lit(self.start)
        return [first + place for place in range(self.length)]

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """Returns one Arrow array per output."""
        lists = values[0]
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        begins = np.concatenate([[0], np.cumsum(lengths)])[:-1]
        first = np.maximum(0, lengths + self.start) if self.start < 0 else np.full(len(lengths), self.start)
        flat = pc.list_flatten(lists)
        if self.columns:
            if isinstance(flat, pa.DictionaryArray):
                flat = flat.dictionary.take(flat.indices)
            ids = np.append(flat.to_numpy(zero_copy_only=False).astype(np.int64), PAD_ID)
            places = [first + place for place in range(self.length)]
            return [
                pa.array(ids[np.where(place < lengths, begins + place, len(ids) - 1)], pa.int64())
                for place in places
            ]
        taken = np.clip(lengths - first, 0, self.length)
        at = np.repeat(begins + first - np.concatenate([[0], np.cumsum(taken)])[:-1], taken)
        part = flat.take(pa.array(at + np.arange(len(at))))
        ends = pa.array(
            np.concatenate([[0], np.cumsum(taken)]).astype(np.int32),
            mask=np.append(lists.is_null().to_numpy(zero_copy_only=False), False),
        )
        return [pa.ListArray.from_arrays(ends, part)]


class ListSlice(Operator):
    """Takes `length` elements of each list, from position `start` on. Null stays null.

    With `columns: true`, each element becomes a separate column: `<column>_0` to `<column>_<length - 1>`. If
    a list is null or has too few elements, the remaining columns contain PAD_ID (0). This converts a list of
    ids to several ordinary categorical features.

    | in        | out (length=2) | out (start=-2, length=2) | out (length=2, columns=true) |
    |-----------|----------------|--------------------------|------------------------------|
    | [5, 6, 7] | [5, 6]         | [6, 7]                   | 5 and 6                      |
    | [5]       | [5]            | [5]                      | 5 and 0                      |
    | []        | []             | []                       | 0 and 0                      |
    | null      | null           | null                     | 0 and 0                      |
    """

    name: ClassVar[str] = "list_slice"
    page: ClassVar[str] = "lists"
    keeps_ids: ClassVar[bool] = True
    takes: ClassVar[tuple[Type, ...]] = LISTS
    length: Annotated[int, Field(ge=1, le=_LONGEST)] = Field(description="Number of elements to take.")
    start: Integer = Field(
        default=0,
        description="Position of the first element to take. The first element of a list has position 0. "
        "A negative number counts from the end.",
    )
    columns: bool = Field(
        default=False, description="Whether each element becomes a separate column, instead of a list."
    )

    def bind(self, columns: Mapping[str, Type]) -> list[Step]:
        """Returns the unfitted steps that apply the operator to `columns`.

        Raises:
            ConfigError: the operator does not accept these columns.
        """
        self.require_types(columns)
        if not self.columns:
            return [Step(self, (name,), (name,), {name: kind}) for name, kind in columns.items()]
        wrong = [name for name, kind in columns.items() if kind != "ints"]
        if wrong:
            raise ConfigError(
                f"list_slice with columns=true needs lists of ids, but {wrong} are not",
                "put categorify or hash_bucket before list_slice",
            )
        return [
            Step(self, (name,), tuple(names), dict.fromkeys(names, "int"))
            for name in columns
            for names in [[f"{name}_{place}" for place in range(self.length)]]
        ]

    def fit(self, step: Step, statistics: Statistics) -> FittedListSlice:
        """Returns the fitted step."""
        return FittedListSlice(
            step.inputs, step.outputs, self.start, self.length, self.columns, statistics.cardinality
        )
