"""Groupby: combines the rows with the same key into one row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, assert_never

from pydantic import Field

from conf.errors import ConfigError
from conf.lazy_pyspark import F
from etl.ops.base import KEYS, NUMBERS, Type
from etl.ops.frames import RowChanger
from etl.ops.keyed import exact_sum
from etl.ops.parameters import Texts
from etl.split.time_split import SPLIT
from storage.feature_spec import EVENT_TIME, GROUP_KEY, ITEM_KEY, LABEL, ROW_ID, USER_KEY, WEIGHT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_OF_NUMBERS = ("sum", "mean", "min", "max")
Aggregate = Literal["sum", "mean", "min", "max", "count", "first", "last", "list"]
_LISTS: Mapping[Type, Type] = {"int": "ints", "string": "strings"}


class Groupby(RowChanger):
    """Combines all rows with the same values in the columns `by` into one row, for example a session.

    `aggregates` maps a column to a list of aggregates. `sum`, `mean`, `min` and `max` need numbers. `count`,
    `first` and `last` also accept texts. `list` needs integers or texts. It collects the values that are not
    null, in the order of time. New columns are named `<column>_<aggregate>`. `first` is null if the column is
    null in the first of the combined rows. `last` is null if the column is null in the last of these rows.

    The label of the new row is 1 if the label of one of the combined rows is 1. The new row has the smallest
    row_id, the latest event_time and the largest weight (`log.label.weights`) of the combined rows. The
    columns of the section `keys` must be in `by`. A null in a column of `by` is treated like any other value.
    If one partition is divided into splits (`split.by` is not `day`), rows of different splits are never
    combined.

    The table shows the new row for `by: [u]` and the rows (u=k, x=1, y=a, label=0) and (u=k, x=3, y=b,
    label=1):

    | u | x_sum | y_list | label |
    |---|-------|--------|-------|
    | k | 4.0   | [a, b] | 1     |
    """

    name: ClassVar[str] = "groupby"
    by: Texts = Field(min_length=1, description="Rows with the same values in these columns are combined.")
    aggregates: Mapping[str, Annotated[tuple[Aggregate, ...], Field(strict=False, min_length=1)]] = Field(
        description="Maps each column to a list of aggregates: `sum`, `mean`, `min`, `max`, `count`, "
        "`first`, `last` or `list`.",
    )

    def bind(self, columns: Mapping[str, Type]) -> Mapping[str, Type]:
        """Returns the new columns with their types.

        Raises:
            ConfigError: a column does not exist or has a wrong type.
        """
        unknown = [name for name in self.by if columns.get(name) not in KEYS]
        if unknown:
            raise ConfigError(
                f"groupby.by lists {unknown}, which are not columns of type int or string",
                f"list columns of these types; the columns are {dict(columns)}",
            )
        types: dict[str, Type] = {name: columns[name] for name in self.by}
        for column, wanted in self.aggregates.items():
            kind = columns.get(column)
            for aggregate in wanted:
                takes = (
                    NUMBERS
                    if aggregate in _OF_NUMBERS
                    else tuple(_LISTS)
                    if aggregate == "list"
                    else (*NUMBERS, "string")
                )
                if kind not in takes:
                    raise ConfigError(
                        f"groupby {aggregate} takes a column of type {' or '.join(takes)}, "
                        f"but {column} is {kind}",
                        "correct `aggregates` of groupby",
                    )
                types[f"{column}_{aggregate}"] = _gives(aggregate, kind)
        return types

    def apply(self, rows: DataFrame) -> DataFrame:
        """Returns one row for each combination of values in the columns `by`."""
        order = [EVENT_TIME, ROW_ID] if EVENT_TIME in rows.columns else [ROW_ID]
        place = F.struct(*order)
        # Other columns that each new row keeps, if the rows have them.
        carried: dict[str, Column] = {ROW_ID: F.min(ROW_ID), LABEL: F.max(LABEL)}
        carried |= {name: F.first(name) for name in (USER_KEY, ITEM_KEY, GROUP_KEY) if name in rows.columns}
        carried |= {name: F.max(name) for name in (EVENT_TIME,) if name in rows.columns}
        # Raw columns are never float32, so a raw column with the name of the weight is not carried.
        carried |= {name: F.max(name) for name, kind in rows.dtypes if (name, kind) == (WEIGHT, "float")}
        carried |= {name: F.first(name) for name in rows.columns if name.startswith("_")}
        computed = {
            f"{column}_{aggregate}": _aggregate(aggregate, F.col(column), place)
            for column, wanted in self.aggregates.items()
            for aggregate in wanted
        }
        # Rows of different splits are not combined: a training row must not contain later events.
        by = [*self.by, *(name for name in (SPLIT,) if name in rows.columns)]
        return rows.groupBy(*by).agg(*(value.alias(name) for name, value in {**carried, **computed}.items()))


def _gives(aggregate: Aggregate, kind: Type) -> Type:
    match aggregate:
        case "list":
            return _LISTS[kind]
        case "first" | "last" | "min" | "max":
            return kind
        case "count":
            return "int"
        case "sum" | "mean":
            return "float"
    assert_never(aggregate)


def _aggregate(name: Aggregate, value: Column, place: Column) -> Column:
    match name:
        case "sum":
            return F.when(F.count(value) > 0, exact_sum(value))
        case "mean":
            return F.when(F.count(value) > 0, exact_sum(value) / F.count(value))
        case "min":
            return F.min(value)
        case "max":
            return F.max(value)
        case "count":
            return F.count(value)
        case "first":
            return F.min_by(value, place)
        case "last":
            return F.max_by(value, place)
        case "list":
            pairs: Any = F.collect_list(
                F.when(value.isNotNull(), F.struct(place.alias("place"), value.alias("value")))
            )
            return F.transform(F.sort_array(pairs), lambda pair: pair.getField("value"))
    assert_never(name)
