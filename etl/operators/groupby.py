"""Groupby: combines the rows with the same key into one row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from conf.errors import ConfigError
from conf.lazy_imports import F
from etl.ops.arrays import as_doubles, from_doubles, groups_of, integers_of, plain, whole
from etl.ops.base import KEYS, NUMBERS, RowChanger, Texts, Type
from etl.ops.keyed import exact_sum
from etl.ops.training_statistics import GroupedNumbers
from etl.raw.splits import SPLIT
from storage.feature_spec import EVENT_TIME, GROUP_KEY, ITEM_KEY, LABEL, ROW_ID, USER_KEY, WEIGHT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_OF_NUMBERS = ("sum", "mean", "min", "max")
Aggregate = Literal["sum", "mean", "min", "max", "count", "first", "last", "list"]
_LISTS: Mapping[Type, Type] = {"int": "ints", "string": "strings"}


class Groupby(RowChanger):
    """Combines all rows with the same values in the columns `by` into one row, for example a session.

    `aggregates` maps a column to a list of aggregates. `sum`, `mean`, `min` and `max` need numbers. `count`,
    `first` and `last` also accept strings. `list` accepts a column of integers or strings, and collects its
    non-null values, ordered by event time. New columns are named `<column>_<aggregate>`. `first` is null if
    the column is null in the first of the combined rows. `last` is null if the column is null in the last of
    these rows.

    The label of the new row is 1 if the label of one of the combined rows is 1. The new row has the smallest
    row_id, the latest event_time and the largest weight (`log.label.weights`) of the combined rows. The
    columns of the section `keys` must be in `by`. A null in a column of `by` is treated like any other value.
    If `split.by` is `fraction` or `leave_last_out`, rows of different splits are never combined.

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
            present = ", ".join(f"{name} ({kind})" for name, kind in columns.items())
            raise ConfigError(
                f"groupby.by lists {unknown}, which are not columns of type int or string",
                f"list columns of these types; the columns and their types are: {present}",
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
                        f"but {column} is {kind or 'not a column'}",
                        f"in `aggregates` of groupby, replace {column} or {aggregate} by another column or "
                        "aggregate",
                    )
                types[f"{column}_{aggregate}"] = _gives(aggregate, kind)
        return types

    def apply(self, rows: DataFrame) -> DataFrame:
        """Returns one row for each combination of values in the columns `by`."""
        order = [EVENT_TIME, ROW_ID] if EVENT_TIME in rows.columns else [ROW_ID]
        place = F.struct(*order)
        # The new rows also have these columns, if the old rows have them. `by` and `aggregates` need not list
        # them.
        carried: dict[str, Column] = {ROW_ID: F.min(ROW_ID), LABEL: F.max(LABEL)}
        carried |= {name: F.first(name) for name in (USER_KEY, ITEM_KEY, GROUP_KEY) if name in rows.columns}
        carried |= {name: F.max(name) for name in (EVENT_TIME,) if name in rows.columns}
        # Only the column of weights is float32. A raw column may have the same name, but another type.
        carried |= {name: F.max(name) for name, kind in rows.dtypes if (name, kind) == (WEIGHT, "float")}
        carried |= {name: F.first(name) for name in rows.columns if name.startswith("_")}
        computed = {
            f"{column}_{aggregate}": _aggregate(aggregate, F.col(column), place)
            for column, wanted in self.aggregates.items()
            for aggregate in wanted
        }
        # Rows of different splits are not combined, because a training row must not contain later events.
        by = [*self.by, *(name for name in (SPLIT,) if name in rows.columns)]
        return rows.groupBy(*by).agg(*(value.alias(name) for name, value in {**carried, **computed}.items()))

    def apply_table(self, rows: pa.Table) -> pa.Table:
        """Returns one row for each combination of values in `by`, with the same columns as `apply`.

        Copied columns, and the aggregates `first` and `last`, keep their dictionaries. Other columns have no
        dictionary.
        """
        names = rows.column_names
        by = [*self.by, *(name for name in (SPLIT,) if name in names)]
        groups, size = groups_of(rows, by)
        row_ids = integers_of(rows.column(ROW_ID))
        times = [integers_of(rows.column(EVENT_TIME))] if EVENT_TIME in names else []
        # In this order, the rows of a group are consecutive and sorted by time.
        order = np.lexsort((row_ids, *times, groups))
        sizes = np.bincount(groups, minlength=size)
        ends = np.cumsum(sizes)
        starts = ends - sizes
        first = pa.array(order[starts])
        copied = [name for name in (USER_KEY, ITEM_KEY, GROUP_KEY) if name in names]
        columns = {name: whole(rows.column(name)).take(first) for name in by}
        columns[ROW_ID] = pa.array(np.minimum.reduceat(row_ids[order], starts) if size else row_ids)
        labels = plain(rows.column(LABEL)).to_numpy(zero_copy_only=False)
        columns[LABEL] = pa.array(np.maximum.reduceat(labels[order], starts) if size else labels)
        columns |= {name: whole(rows.column(name)).take(first) for name in copied}
        if times:
            columns[EVENT_TIME] = pa.array(times[0][order[ends - 1]])
        if WEIGHT in names and pa.types.is_float32(
            rows.schema.field(WEIGHT).type
        ):  # A raw column is never float32, so this is the column of weights.
            weights = plain(rows.column(WEIGHT)).to_numpy(zero_copy_only=False)
            columns[WEIGHT] = pa.array(np.maximum.reduceat(weights[order], starts) if size else weights)
        columns |= {name: whole(rows.column(name)).take(first) for name in names if name.startswith("_")}
        for column, wanted in self.aggregates.items():
            ordered = _OrderedGroups(whole(rows.column(column)).take(pa.array(order)), starts, ends)
            columns |= {f"{column}_{aggregate}": ordered.aggregate(aggregate) for aggregate in wanted}
        return pa.table(columns)

    def key_columns(self) -> tuple[str, ...]:
        """Returns the columns `by`."""
        return self.by

    def reads(self, added: str) -> tuple[str, ...]:
        """Returns the columns from which the aggregate `added` is computed."""
        named = {f"{column}_{one}": column for column, wanted in self.aggregates.items() for one in wanted}
        return (*self.by, *(named[name] for name in [added] if name in named))


class _OrderedGroups:
    """The values of a column, ordered by group and then by time.

    Attributes:
        values: n values, with or without a dictionary.
        starts, ends: (m,) int64. Group i has the values in [starts[i], ends[i]). No group is empty.
        present: the values that are not null, without a dictionary.
        groups: the group of each value in `present`.
        counts: (m,) int64, the number of values that each group has in `present`.
    """

    def __init__(self, values: pa.Array, starts: np.ndarray, ends: np.ndarray) -> None:
        self.values, self.starts, self.ends = values, starts, ends
        self.present = plain(pa.chunked_array([values])).drop_null()
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        self.groups = np.repeat(np.arange(len(starts)), ends - starts)[valid]
        self.counts = np.bincount(self.groups, minlength=len(starts))

    def aggregate(self, name: Aggregate) -> pa.Array:
        """Returns the aggregate `name` of each group."""
        match name:
            case "sum":
                return self._sums()
            case "mean":
                return pc.divide(self._sums(), pa.array(np.maximum(self.counts, 1)).cast(pa.float64()))
            case "min":
                return self._extremes(np.minimum)
            case "max":
                return self._extremes(np.maximum)
            case "count":
                return pa.array(self.counts)
            case "first":
                return self.values.take(pa.array(self.starts))
            case "last":
                return self.values.take(pa.array(self.ends - 1))
            case "list":
                offsets = np.concatenate([[0], np.cumsum(self.counts)])
                return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), self.present)
        assert_never(name)

    def _sums(self) -> pa.Array:
        """Returns the exact sums; null for a group without values."""
        values, _ = as_doubles(self.present)
        sums, too_large = as_doubles(GroupedNumbers(values, self.groups, len(self.counts)).exact_sums())
        return from_doubles(sums, too_large | (self.counts == 0))

    def _extremes(self, least_or_most: np.ufunc) -> pa.Array:
        """Returns the smallest or the largest value of each group, in the type of the column."""
        values = self.present.to_numpy(zero_copy_only=False)
        with_values = self.counts > 0
        extremes = np.zeros(len(self.counts), values.dtype)
        if len(values):
            starts = (np.cumsum(self.counts) - self.counts)[with_values]
            extremes[with_values] = least_or_most.reduceat(values, starts)
        return pa.array(extremes, self.present.type, mask=~with_values)


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
