"""Converts columns of typed files, such as Parquet, to the declared types of raw columns.

This module has the rules for bool, date, timestamp, decimal and lists. If a Parquet file has texts in such a
column, etl/raw/parquet_columns.py refuses them. Texts in other files are read as in text files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.raw_types import Column, ColumnType
from conf.time_notation import UTC
from etl.raw.text_values import nan_to_null, typed_column, without_elements
from etl.raw.time_text import FIRST_DAY, LAST_DAY, US_OF_DAY, instants
from storage.feature_spec import FLOAT32_MAX

_LARGEST = 2**63 - 1
_US_OF_UNIT = {"s": 10**6, "ms": 10**3, "us": 1}


def can_hold(column: Column, kind: pa.DataType) -> bool:
    """Returns whether `stored_values` reads values of an Arrow type as the declared type of a column.

    The column must have one of the types bool, date, timestamp, decimal, list<int> and list<string>.
    """
    if pa.types.is_dictionary(kind):
        return can_hold(column, kind.value_type)
    return pa.types.is_null(kind) or _is_text(kind) or _FITS[column.type](kind)


def stored_values(values: pa.Array, column: Column, time_zone: str = UTC) -> tuple[pa.Array, pa.Array | None]:
    """Converts n stored values to the type that operators receive.

    Returns the values, and an array of reasons (None if no value is rejected). As in
    `etl.raw.text_values.typed_column`, a value that does not fit is null, and has a reason. Timestamps are
    rounded down to µs. Timestamps without a time zone are in `time_zone`. A timestamp beyond 64 bits in µs
    and NaN become null. Null or empty elements of lists are left out.

    Args:
        values: n values of an Arrow type for which `can_hold` is true.
        column: a column of the type bool, date, timestamp, decimal, list<int> or list<string>.
        time_zone: the IANA name of the zone of timestamps that have no zone.
    """
    if pa.types.is_dictionary(values.type):
        distinct, reasons = stored_values(values.dictionary, column, time_zone)
        return distinct.take(values.indices), None if reasons is None else reasons.take(values.indices)
    if pa.types.is_null(values.type):
        values = values.cast(pa.string())
    if _is_text(values.type):
        return typed_column(values.cast(pa.string()), column, [""], time_zone)
    if column.type == "bool":
        return _booleans(values, column)
    if column.type == "decimal":
        return _decimals(values, column)
    if column.type == "date":
        return values.cast(pa.date32()).cast(pa.int32()).cast(pa.int64()), None
    if column.type == "timestamp":
        return utc_micros(values, time_zone), None
    element = pa.int64() if column.type == "list<int>" else pa.string()
    lists = values.cast(pa.list_(element))
    unwanted = None if column.type == "list<string>" else pc.list_flatten(lists).is_null()
    return without_elements(lists, unwanted), None


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_number(kind: pa.DataType) -> bool:
    return (
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
    )


def _is_list_of(element: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    def fits(kind: pa.DataType) -> bool:
        return (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and (
            element(kind.value_type) or pa.types.is_null(kind.value_type)
        )

    return fits


def _never(kind: pa.DataType) -> bool:
    return False


_FITS: Mapping[ColumnType, Callable[[pa.DataType], bool]] = {
    "int": _never,
    "float": _never,
    "string": _never,
    "bool": _is_number,
    "decimal": _is_number,
    "date": pa.types.is_date,
    "timestamp": pa.types.is_timestamp,
    "list<int>": _is_list_of(lambda kind: pa.types.is_integer(kind) and kind != pa.uint64()),
    "list<string>": _is_list_of(_is_text),
}


def _doubles(values: pa.Array) -> pa.Array:
    """Returns numbers or booleans as doubles, and decimals as the nearest double; null for NaN."""
    if pa.types.is_decimal(values.type):
        return values.cast(pa.string()).cast(pa.float64())  # Arrow's own cast of decimals is not exact
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int64())
    return nan_to_null(values.cast(pa.float64(), safe=False))


def _booleans(values: pa.Array, column: Column) -> tuple[pa.Array, pa.Array | None]:
    numbers = _doubles(values)
    fits = pc.or_(pc.equal(numbers, 0.0), pc.equal(numbers, 1.0))
    good = pc.if_else(fits, numbers, pa.scalar(None, pa.float64())).cast(pa.int64())
    return good, _reasons(numbers, good, f"boolean:{column.name}")


def _decimals(values: pa.Array, column: Column) -> tuple[pa.Array, pa.Array | None]:
    numbers = _doubles(values)
    fits = pc.less_equal(pc.abs(numbers), FLOAT32_MAX)
    if pa.types.is_boolean(values.type) or pa.types.is_integer(values.type):
        return numbers, None
    good = pc.if_else(fits, numbers, pa.scalar(None, pa.float64()))
    return good, _reasons(numbers, good, f"decimal:{column.name}")


def _reasons(values: pa.Array, good: pa.Array, reason: str) -> pa.Array | None:
    bad = pc.and_(values.is_valid(), good.is_null())
    if not pc.any(bad).as_py():
        return None
    return pc.if_else(bad, pa.scalar(reason), pa.scalar(None, pa.string()))


def utc_micros(values: pa.Array, time_zone: str) -> pa.Array:
    """Returns n timestamps as int64 µs since 1970-01-01 UTC, rounded down.

    Timestamps without a time zone are in `time_zone`.
    """
    unit, is_local = values.type.unit, values.type.tz is None
    numbers = values.cast(pa.int64())
    nulls = numbers.is_null().to_numpy(zero_copy_only=False)
    units = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    if unit == "ns":
        micros = units // 1000
    else:
        last = _LARGEST // _US_OF_UNIT[unit]
        nulls = nulls | (units > last) | (units < -last)
        micros = np.where(nulls, 0, units) * _US_OF_UNIT[unit]
    if is_local and time_zone != UTC:
        known = (micros >= FIRST_DAY * US_OF_DAY) & (micros < (LAST_DAY + 1) * US_OF_DAY)
        nulls = nulls | ~known
        micros = instants(np.where(nulls, 0, micros), time_zone)
    return pa.array(micros, pa.int64(), mask=nulls)
