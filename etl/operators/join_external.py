"""JoinExternal: adds columns of an external table, joined by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import pyarrow as pa
from pydantic import BeforeValidator, Field

from conf.errors import ConfigError
from conf.load import read_section
from conf.names import PlainText
from conf.plugins import READER, list_names
from conf.raw_types import POINT, Column, DecimalSeparator, Format, OperatorType, Strict, operator_type
from conf.time_notation import ISO, UTC, TimeFormat
from conf.types import JoinedTable
from etl.ops.base import KEYS, Operator, Step, Texts, Type
from etl.ops.keyed import KeyedFitted, bind_keys, table_name
from etl.ops.tables import LocalTables, Tables
from etl.ops.training_statistics import Need, Statistics

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

# All types of columns except lists.
ColumnKind = Literal["int", "float", "string", "bool", "date", "timestamp", "decimal"]


class ExternalColumn(Strict):
    """The type of a column of an external table, and how its values are read."""

    type: ColumnKind = Field(
        description="Type of the values, as in the section `log`. `int`: 64 bits. `float`: a double. "
        "`string`: UTF-8 text. `bool`: 1 or 0. `date`: days since 1970-01-01. `timestamp`: µs since "
        "1970-01-01 00:00 UTC. `decimal`: rounded to a double."
    )
    format: TimeFormat = Field(default=ISO, description="Notation of dates or timestamps in text files.")
    source: PlainText | None = Field(
        default=None, description="Name of the column in the files. Null: the name is the same."
    )
    optional: bool = Field(default=False, description="Whether files may lack the column.")

    def named(self, name: str) -> Column:
        """Returns these settings as a column named `name`."""
        return Column(name=name, **self.model_dump())


def _with_type(value: Any) -> Any:
    """Converts the name of a type to the settings of a column. Returns other values unchanged."""
    return {"type": value} if isinstance(value, str) else value


# Without this conversion, pydantic's strict mode would accept only objects of this class, and no mappings.
TypedColumn = Annotated[
    ExternalColumn,
    Field(strict=False),
    BeforeValidator(_with_type, json_schema_input_type=ColumnKind | ExternalColumn),
]
_ARROW_TYPES: Mapping[Type, pa.DataType] = {"int": pa.int64(), "float": pa.float64(), "string": pa.string()}


@dataclass(frozen=True)
class FittedJoinExternal(KeyedFitted):
    """The fitted step of the operator `join_external`."""

    name: ClassVar[str] = "join_external"
    kinds: tuple[Type, ...] = ()

    @classmethod
    def from_state(
        cls, inputs: Sequence[str], outputs: Sequence[str], state: Mapping[str, Any]
    ) -> FittedJoinExternal:
        """Creates the fitted step from stored JSON values."""
        return cls(tuple(inputs), tuple(outputs), state["table"], tuple(state["kinds"]))

    def apply(
        self, rows: DataFrame, values: Sequence[SparkColumn], tables: Tables, tag: str
    ) -> tuple[DataFrame, list[SparkColumn]]:
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
    results of a workflow version never change. An extended workflow uses the copy of the original workflow.
    The new columns of a row are null if its key is null or not in the table.

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
    columns: Mapping[str, TypedColumn] = Field(
        min_length=1,
        description="The columns to add. Maps each column to its type, such as `{price: float}`, or to its "
        'settings, such as `{since: {type: date, format: "%d/%m/%Y"}}`. The settings are `type`, `format`, '
        "`source` and `optional`, as for a column of the log. The types are `int`, `float`, `string`, "
        "`bool`, `date`, `timestamp` and `decimal`, as in the section `log`.",
    )
    format: Format = Field(
        default="parquet",
        description="Format of the files, as in the section `log`. A `tsv` file has the key first, and then "
        "the columns in the order of `columns`.",
        json_schema_extra=list_names(READER),
    )
    separator: str | None = Field(
        default=None,
        description="Character between two fields of a line in text files. Null: a comma for `csv`, a tab "
        "for `tsv`.",
    )
    null_values: Texts = Field(
        default=("",), description="Strings that mean null in text files. The empty string always does."
    )
    decimal_separator: DecimalSeparator = Field(
        default=POINT,
        description="Character before the decimals of a number in text files. `.`: numbers such as 12.50. "
        "`,`: numbers such as 12,50 or 1.234,50.",
    )
    time_zone: str = Field(
        default=UTC,
        description="Time zone in which timestamps without an offset, and dates, are interpreted.",
    )
    key: str | None = Field(
        default=None,
        description="Key column of the table. Null: it has the same name as the group's column.",
    )

    @property
    def column_types(self) -> dict[str, OperatorType]:
        """Maps the name of each added column to the type that operators receive."""
        return {name: operator_type(column.named(name)) for name, column in self.columns.items()}

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
        steps = bind_keys(self, columns, False, lambda key: self.column_types)
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
        columns += [{"name": name, **_settings(column)} for name, column in self.columns.items()]
        values: dict[str, Any] = {
            "path": self.path,
            "format": self.format,
            "separator": self.separator,
            "null_values": list(self.null_values),
            "decimal_separator": self.decimal_separator,
            "time_zone": self.time_zone,
            "columns": columns,
        }
        return read_section(JoinedTable, values, "join_external ", "correct these parameters"), key

    def fit(self, step: Step, statistics: Statistics) -> FittedJoinExternal:
        """Returns the fitted step."""
        kinds = tuple(step.types[name] for name in step.outputs)
        return FittedJoinExternal(step.inputs, step.outputs, table_name(step), kinds)

    def config(self) -> str | dict[str, dict[str, Any] | None]:
        """Returns the operator as an entry of `features.ops`. Parameters with default values are omitted."""
        entry = super().config()
        parameters = dict(entry.get(self.name) or {}) if isinstance(entry, dict) else {}
        # A comma was the default of earlier releases. It is omitted, so that digests do not change.
        if self.format == "csv" and self.separator == ",":
            del parameters["separator"]
        columns: dict[str, Any] = {}
        for name, column in self.columns.items():
            settings = _settings(column)
            columns[name] = settings if len(settings) > 1 else column.type
        return {self.name: {**parameters, "columns": columns}}


def _settings(column: ExternalColumn) -> dict[str, Any]:
    """Returns the type of a column, and the settings that differ from their defaults."""
    return {"type": column.type, **column.model_dump(exclude_defaults=True)}
