"""Code for operators that look up statistics by key in a table: exact sums, joins and lookups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import ConfigError
from conf.lazy_imports import F
from etl.ops.base import KEYS, Fitted, Operator, Step, Type
from etl.ops.tables import LocalTables, Tables
from etl.raw.text_values import joined_array, joined_column, text_array

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY = "key"
# Columns by which statistics are grouped: the number of a step, and the key of a row in the step's table.
GROUP = ("_table", "_key")
# Values are rounded to multiples of 2**-24 (6e-8), so that sums do not depend on the order of rows.
_UNITS = float(2**24)


def exact_sum(value: Column) -> Column:
    """Returns an aggregate that adds doubles. The sum does not depend on the order of rows.

    Each value is rounded to a multiple of 2**-24. The sum is 0.0 if there are no values. A Spark decimal has
    only 38 digits, so the sum is null if the absolute value of a number, or of the sum, is 5e30 or more.
    """
    units = F.rint(value.cast("double") * _UNITS).cast("decimal(38,0)")
    fits = F.count(units) == F.count(value)
    return F.when(F.count(value) == 0, F.lit(0.0)).when(fits, F.sum(units).cast("double") / _UNITS)


@dataclass(frozen=True)
class KeyedFitted(Fitted):
    """A fitted step that forms a key from the inputs of each row, and looks up this key in a table."""

    takes_codes: ClassVar[bool] = True
    table: str = ""

    def join_table(
        self, rows: DataFrame, values: Sequence[Column], tables: Tables, tag: str
    ) -> tuple[DataFrame, Callable[[str], Column]]:
        """Joins `rows` with the step's table by the key that the inputs form.

        Returns:
            The joined rows, and a function that maps the name of a table column to its Spark expression.
        """
        lookup = tables.keyed(self.table)
        renamed = lookup.select(*(F.col(name).alias(f"{tag}{name}") for name in lookup.columns))
        joined = rows.join(renamed, joined_column(values) == F.col(f"{tag}{KEY}"), "left")
        return joined.drop(f"{tag}{KEY}"), lambda name: F.col(f"{tag}{name}")

    def look_up(
        self, values: Sequence[pa.Array], tables: LocalTables, types: Mapping[str, pa.DataType] | None = None
    ) -> LookedUp:
        """Finds the key of each of n rows in the step's table.

        Args:
            values: one array of n values for each input. They may be dictionary-encoded.
            types: types of the table columns that are not doubles. They are used only if the table has no
                rows.

        Returns:
            The values of the table's columns for the key of each row.
        """
        lookup, table = tables.keyed(self.table)
        if not len(table):
            return LookedUp(table, pa.nulls(len(values[0]), pa.int64()), types or {})
        coded = _coded(values)
        at = pa.array(lookup.find(text_array(coded.dictionary)))
        of_distinct = pc.if_else(pc.greater_equal(at, 0), at, pa.scalar(None, pa.int64()))
        return LookedUp(table, of_distinct.take(coded.indices), types or {})


@dataclass(frozen=True)
class LookedUp:
    """For each of n rows, the row of a table that has the same key.

    Attributes:
        table: the table. If it has no rows, it has no columns either.
        places: (n,) int64, for each of the n rows, the index of the table's row with the same key; null if
            there is none.
        types: types of the columns that are not doubles. They are used only if the table has no rows.
    """

    table: pa.Table
    places: pa.Array
    types: Mapping[str, pa.DataType]

    def __call__(self, name: str, rows: np.ndarray | None = None) -> pa.Array:
        """Returns the values of a table's column for each row; null if the key is not in the table.

        Args:
            name: the name of a column of the table.
            rows: (m,) int64, the indices of the rows to return; None for all rows.
        """
        places = self.places if rows is None else self.places.take(pa.array(rows))
        if not len(self.table):
            return pa.nulls(len(places), self.types.get(name, pa.float64()))
        return self.table[name].combine_chunks().take(places)


def _coded(values: Sequence[pa.Array]) -> pa.DictionaryArray:
    """Returns the key of each row, dictionary-encoded."""
    if len(values) == 1 and isinstance(values[0], pa.DictionaryArray):
        return values[0]
    plain = [
        array.dictionary.take(array.indices) if isinstance(array, pa.DictionaryArray) else array
        for array in values
    ]
    return joined_array(plain).dictionary_encode()


def table_name(step: Step) -> str:
    """Returns the name of a step's table, built from the step's operator, inputs and first output."""
    return f"{step.operator.name}_{'_'.join((*step.inputs, *step.outputs[:1]))}"


def bind_keys(
    operator: Operator, columns: Mapping[str, Type], joint: bool, outputs: Callable[[str], Mapping[str, Type]]
) -> list[Step]:
    """Returns one step per column or, if `joint` is true, a single step over all columns.

    `outputs` takes the name of a key, and returns the names and types of the columns that the step adds.
    """
    for column, kind in columns.items():
        if kind not in KEYS:
            raise ConfigError(
                f"{operator.name} takes keys of type int or string, but {column} is {kind}",
                f"put bucketize before {operator.name}, or declare {column} as a string",
            )
    groups = [tuple(columns)] if joint else [(name,) for name in columns]
    return [
        Step(operator, inputs, tuple(types), dict(types))
        for inputs in groups
        for types in [outputs("_".join(inputs))]
    ]
