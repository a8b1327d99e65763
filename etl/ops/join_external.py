"""JoinExternal: adds columns of an external table, joined by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyarrow as pa
from pydantic import Field

from conf.errors import ConfigError
from conf.load import read_section
from conf.types import JoinedTable
from etl.ops.base import KEYS, Operator, Step, Type
from etl.ops.keyed import KeyedFitted, bind_keys, table_name
from etl.ops.parameters import Texts
from etl.ops.tables import LocalTables, Tables
from etl.ops.training_statistics import Need, Statistics

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ARROW_TYPES: Mapping[Type, pa.DataType] = {"int": pa.int64(), "float": pa.float64(), "string": pa.string()}


@dataclass(frozen=True)
class FittedJoinExternal(KeyedFitted):
    """The operator `join_external` after its fit."""

    name: ClassVar[str] = "join_external"
    kinds: tuple[Type, ...] = ()

    @classmethod
    def from_state(
        cls, inputs: Sequence[str], outputs: Sequence[str], state: Mapping[str, Any]
    ) -> FittedJoinExternal:
        """Creates the fitted step from stored JSON values."""
        return cls(tuple(inputs), tuple(outputs), state["table"], tuple(state["kinds"]))

    def apply(
        self, rows: DataFrame, values: Sequence[Column], tables: Tables, tag: str
    ) -> tuple[DataFrame, list[Column]]:
        """Returns `rows`, joined with the copy of the external table, and one expression per output."""
        joined, of = self.join_table(rows, values, tables, tag)
        return joined, [of(output) for output in self.outputs]

    def compute(self, values: Sequence[pa.Array], tables: LocalTables) -> list[pa.Array]:
        """Returns one Arrow array per output."""
        types = {name: _ARROW_TYPES[kind] for name, kind in zip(self.outputs, self.kinds, strict=True)}
        of = self.look_up(values, tables, types)
        return [of(output) for output in self.outputs]


class JoinExternal(Operator):
    """Adds columns of an external table that has one row per key.

    When a workflow is fitted, the external table is read and a copy is stored with the workflow. So the
    results of a workflow version never change. An extended workflow uses the copy of the workflow that it
    extends. The new columns of a row are null if its key is null or not in the table.

    | key  | out (the only row of the table has key a, value 5) |
    |------|----------------------------------------------------|
    | a    | 5                                                  |
    | b    | null                                               |
    | null | null                                               |
    """

    name: ClassVar[str] = "join_external"
    page: ClassVar[str] = "keys"
    needs: ClassVar[Need] = "external"
    takes: ClassVar[tuple[Type, ...]] = KEYS
    path: str = Field(
        description="Path of the table's file, or a pattern for several files. `{data}` and `{lake}` are "
        "replaced by the values of these keys of the configuration."
    )
    columns: Mapping[str, Literal["int", "float", "string"]] = Field(
        min_length=1,
        description="Maps each column of the table that is to be added to its type: `int`, `float` or "
        "`string`.",
    )
    format: Literal["csv", "parquet"] = Field(
        default="parquet",
        description="Format of the files. `csv`: text, which must have a header line. `parquet`: Parquet.",
    )
    separator: str = Field(default=",", description="Character between the fields of a csv file.")
    null_values: Texts = Field(
        default=("",), description="Texts that stand for null in a csv file, besides the empty text."
    )
    key: str | None = Field(
        default=None,
        description="Key column of the table. Null: the table's column with the name of the group's column.",
    )

    def bind(self, columns: Mapping[str, Type]) -> list[Step]:
        """Returns the unfitted steps that apply the operator to `columns`.

        Raises:
            ConfigError: the operator does not accept these columns.
        """
        if len(columns) != 1:
            raise ConfigError(
                f"join_external joins by one column, not {list(columns)}",
                "list exactly one column in features.columns",
            )
        steps = bind_keys(self, columns, False, lambda key: dict(self.columns))
        for step in steps:
            self.source(step)
        return steps

    def source(self, step: Step) -> tuple[JoinedTable, str]:
        """Returns the settings of the external table, and the name of its key column.

        Raises:
            ConfigError: a parameter is not valid, for example the separator.
        """
        key = self.key or step.inputs[0]
        columns = [{"name": key, "type": "string"}]
        columns += [{"name": name, "type": kind} for name, kind in self.columns.items()]
        values: dict[str, Any] = {
            "path": self.path,
            "format": self.format,
            "columns": columns,
        }
        if self.format == "csv":
            values |= {"separator": self.separator, "null_values": list(self.null_values)}
        return read_section(JoinedTable, values, "join_external ", "correct these parameters"), key

    def fit(self, step: Step, statistics: Statistics) -> FittedJoinExternal:
        """Returns the fitted step."""
        kinds = tuple(step.types[name] for name in step.outputs)
        return FittedJoinExternal(step.inputs, step.outputs, table_name(step), kinds)

    def config(self) -> str | dict[str, dict[str, Any] | None]:
        """Returns the operator as an entry of `features.ops`. Parameters with default values are omitted."""
        entry = super().config()
        parameters = entry.get(self.name) if isinstance(entry, dict) else None
        return {self.name: {**(parameters or {}), "columns": dict(self.columns)}}
