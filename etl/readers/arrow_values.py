"""Converts Arrow columns to the declared types of raw columns, by the same rules for all binary formats.

Each distinct value is converted once.

| declared | result | values that fit |
|---|---|---|
| int | int64 | 64-bit integers, booleans (0, 1), strings of integers; floats below 2⁵³ (float32: 2²⁴) |
| float, decimal | double | numbers within the range of float32, booleans (0, 1), strings of numbers |
| string | string | UTF-8 strings, whole numbers; an empty string is null |
| bool | int64, 0 or 1 | booleans, the numbers 0 and 1 |
| date | int64, days since 1970-01-01 | dates, timestamps (their date in the time zone of the table) |
| timestamp | int64, µs since 1970-01-01 UTC | timestamps, and dates (at midnight) |
| time | int64, µs since midnight | times of day |
| list<int> | list of int64 | lists of whole numbers; null elements are left out |
| list<string> | list of strings | lists of UTF-8 strings or whole numbers; empty strings are left out |

NaN is null. If the declared type is not string, strings are converted like the fields of text files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import ConfigError, DataError
from conf.raw_types import Column, ColumnType, RawTable
from conf.time_notation import UTC
from etl.raw import time_text
from etl.raw.file_columns import ONE_VALUE, no_text
from etl.raw.row_rules import NANOSECONDS, floor_divide_array
from etl.raw.text_values import (
    integers,
    nan_to_null,
    not_exact,
    over_elements,
    typed_column,
    whole_number_texts,
    without_elements,
)
from etl.raw.time_text import FIRST_DAY, LAST_DAY, US_OF_DAY
from etl.readers.text import rows_with, without_null_values
from storage.feature_spec import FLOAT32_MAX

# Maps each declared type to the Arrow type of its values.
VALUE_TYPES: Mapping[str, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "decimal": pa.float64(),
    "string": pa.string(),
    "bool": pa.int64(),
    "date": pa.int64(),
    "timestamp": pa.int64(),
    "time": pa.int64(),
    "list<int>": pa.list_(pa.int64()),
    "list<string>": pa.list_(pa.string()),
}
_REASONS = {
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list<int>": "list",
    "list<string>": "list",
}
_ELEMENTS = {"list<int>": "int", "list<string>": "string"}
_MOST_DIGITS = 38  # largest number of digits of a decimal of 128 bits


@dataclass(frozen=True)
class Converted:
    """The values of a column in the declared type.

    Attributes:
        values: n values: a dictionary array whose dictionary has no null, or an array of lists.
        malformed: (m,) int64, ascending: the rows whose value does not fit the declared type. They have null
            in `values`.
        reason: the reason of these rows in the quarantine, such as `integer:age`.
    """

    values: pa.Array
    malformed: np.ndarray
    reason: str


class NoTextError(Exception):
    """A value in a string column cannot be written exactly as text.

    Examples are 1.5, and bytes that are not UTF-8. The job stops instead of quarantining the row, because the
    whole column may be wrong. For example, a rounded id may be the id of another user.

    Attributes:
        column: the name and the declared type of the column.
        row: the index of the first row with such a value.
        value: the value of this row, as a Python object.
        count: number of such values among the values that were converted in the same call.
    """

    def __init__(self, column: Column, row: int, value: Any, count: int) -> None:
        super().__init__(f"{column.name}, row {row}")
        self.column, self.row, self.value, self.count = column, row, value, count

    def error(self, path: str, first_row: int) -> DataError:
        """Returns the error to report to the user.

        `first_row` is the first converted row, as an index into the rows of the file `path`.
        """
        return no_text(path, self.column, first_row + self.row + 1, self.value, self.count)


class _InexactError(Exception):
    """Some distinct values cannot be written exactly as text. The argument, (n,) bool, is true for them."""

    def __init__(self, wrong: np.ndarray) -> None:
        super().__init__()
        self.wrong = wrong


def convert(
    values: pa.Array | pa.ChunkedArray, column: Column, unit: str | None = None, time_zone: str = UTC
) -> Converted:
    """Converts n values of any Arrow type that `require_type` accepts to the declared type of a column.

    Args:
        values: the values. Texts are converted fastest if they are dictionary-encoded.
        column: name and declared type.
        unit: for the column of the event time, the unit of its integers: s, ms, us or ns. Timestamps are
            converted to this unit and rounded down. A time that does not fit into 64 bits becomes null.
        time_zone: the time zone in which timestamps without a zone, and dates, are interpreted.

    Raises:
        NoTextError: a value in a string column cannot be written exactly as text.
    """
    array = one_array(values)
    if column.type in _ELEMENTS and is_list(array.type):
        return _converted_lists(array, column)
    encoded = array if isinstance(array, pa.DictionaryArray) else array.dictionary_encode()
    distinct = encoded.dictionary
    try:
        typed, bad = _typed(distinct, column, unit, time_zone)
    except _InexactError as error:
        rows = rows_with(encoded, np.flatnonzero(error.wrong))
        raise NoTextError(column, int(rows[0]), _shown(array, rows[0]), len(rows)) from None
    malformed = rows_with(encoded, np.flatnonzero(bad)) if bad is not None else np.zeros(0, np.int64)
    if column.type in _ELEMENTS:
        return Converted(typed.take(encoded.indices), malformed, reason_of(column))
    indices = encoded.indices if encoded.indices.type == pa.int32() else encoded.indices.cast(pa.int32())
    if typed.null_count:
        return Converted(without_null_values(indices, typed), malformed, reason_of(column))
    # The indices come from `encoded`, so they are valid and need no check.
    return Converted(pa.DictionaryArray.from_arrays(indices, typed, safe=False), malformed, reason_of(column))


def malformed_rows(values: pa.Array | pa.ChunkedArray, column: Column, time_zone: str = UTC) -> np.ndarray:
    """Returns the rows whose value in a column does not fit the declared type, ascending: (m,) int64.

    Raises:
        NoTextError: see `convert`.
    """
    array = one_array(values)
    if isinstance(array, pa.DictionaryArray) or column.type in _ELEMENTS:
        return convert(array, column, None, time_zone).malformed
    try:
        _, bad = _typed(array, column, None, time_zone)
    except _InexactError as error:
        rows = np.flatnonzero(error.wrong)
        raise NoTextError(column, int(rows[0]), _shown(array, rows[0]), len(rows)) from None
    return np.flatnonzero(bad) if bad is not None else np.zeros(0, np.int64)


def reason_of(column: Column) -> str:
    """Returns the reason for rejecting a row whose value in `column` does not fit the declared type."""
    return f"{_REASONS.get(column.type, column.type)}:{column.name}"


def time_zone_of(table: RawTable) -> str:
    """Returns the time zone in which a table's timestamps without a zone are interpreted."""
    return table.time_zone


def null_values(column: Column, rows: int) -> pa.Array:
    """Returns nulls, as the values of a column that a file does not have."""
    kind = VALUE_TYPES[column.type]
    if column.type in _ELEMENTS:
        return pa.nulls(rows, kind)
    return pa.DictionaryArray.from_arrays(pa.nulls(rows, pa.int32()), pa.array([], kind))


def instants(values: pa.Array | pa.ChunkedArray, unit: str, time_zone: str = UTC) -> pa.Array:
    """Converts n timestamps to int64 in a unit, rounded down. A value that does not fit becomes null.

    Timestamps without a time zone are interpreted in `time_zone`. If `time_zone` is not UTC, they are rounded
    down to µs.
    """
    array = one_array(values)
    if array.type.tz is None and time_zone != UTC:
        array = utc_micros(array, time_zone).cast(pa.timestamp("us"))
    stored, raw = array.type.unit, array.cast(pa.int64())
    if NANOSECONDS[stored] <= NANOSECONDS[unit]:
        return floor_divide_array(raw, NANOSECONDS[unit] // NANOSECONDS[stored])
    scale = NANOSECONDS[stored] // NANOSECONDS[unit]
    last = (2**63 - 1) // scale
    fits = pc.and_(pc.less_equal(raw, last), pc.greater_equal(raw, -last))
    return pc.multiply(pc.if_else(fits, raw, pa.scalar(None, pa.int64())), scale)


def one_array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Returns a column as one array with one dictionary. Extension types are removed."""
    if isinstance(values, pa.ChunkedArray):
        if pa.types.is_dictionary(values.type):
            values = values.unify_dictionaries()
        chunks = values.chunks
        if not chunks:
            values = pa.array([], values.type)
        elif len(chunks) == 1:
            values = chunks[0]
        elif pa.types.is_dictionary(values.type):
            indices = pa.concat_arrays([chunk.indices for chunk in chunks])
            # The indices come from the chunks, so they are valid and need no check.
            values = pa.DictionaryArray.from_arrays(indices, chunks[-1].dictionary, safe=False)
        else:
            values = pa.concat_arrays(chunks)
    return values.storage if isinstance(values, pa.ExtensionArray) else values


def is_text(kind: pa.DataType) -> bool:
    """Returns whether values of a type are texts, or bytes that may be texts."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def is_list(kind: pa.DataType) -> bool:
    """Returns whether values of a type are lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def require_type(path: str, column: Column, kind: pa.DataType, is_time: bool) -> None:
    """Checks that the declared type of a column can hold the values of an Arrow type.

    Args:
        path: the file, for the error message.
        column: name and declared type.
        kind: the Arrow type of the column in the file.
        is_time: whether the column is the event time, which may be stored as timestamps.

    Raises:
        ConfigError: only another declared type can hold the values.
        DataError: no declared type can hold the values.
    """
    if pa.types.is_dictionary(kind):
        return require_type(path, column, kind.value_type, is_time)
    if isinstance(kind, pa.BaseExtensionType):
        return require_type(path, column, kind.storage_type, is_time)
    if pa.types.is_null(kind) or (is_time and pa.types.is_timestamp(kind)) or is_text(kind):
        return None
    if pa.types.is_decimal(kind) and kind.precision > _MOST_DIGITS:
        raise _refused(path, column, f"decimal of {kind.precision} digits", "store it as text", DataError)
    if any(accepts(kind) for accepts in _ACCEPTED[column.type]):
        return None
    for accepts, remedy in _DECLARE.items():
        if accepts(kind):
            declare = f"declare the column with `type: {remedy}`"
            if column.type == "timestamp" and pa.types.is_integer(kind):
                declare += ", and set log.event_time.unit if it is the time of the event"
            raise _refused(path, column, str(kind), declare, ConfigError)
    remedy = ONE_VALUE if pa.types.is_nested(kind) else "store it as integers, floats or text"
    raise _refused(path, column, str(kind), f"{remedy}; or remove it from `columns`", DataError)


def _refused(
    path: str, column: Column, kind: str, remedy: str, error: type[ConfigError | DataError]
) -> ConfigError | DataError:
    return error(
        f"{path}: the column {column.source_name!r} has the type {kind}, which cannot be read as "
        f"`type: {column.type}`",
        remedy,
    )


def _is_list_of_whole(kind: pa.DataType) -> bool:
    element = kind.value_type if is_list(kind) else None
    return element is not None and (
        pa.types.is_integer(element) or pa.types.is_floating(element) or pa.types.is_null(element)
    )


def _is_list_of_texts(kind: pa.DataType) -> bool:
    return is_list(kind) and (is_text(kind.value_type) or _is_list_of_whole(kind))


_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
_ACCEPTED: Mapping[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "int": (*_NUMBERS, pa.types.is_boolean),
    "float": (*_NUMBERS, pa.types.is_boolean),
    "decimal": (*_NUMBERS, pa.types.is_boolean),
    "string": _NUMBERS,
    "bool": (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating),
    "date": (pa.types.is_date, pa.types.is_timestamp),
    "timestamp": (pa.types.is_date, pa.types.is_timestamp),
    "time": (pa.types.is_time,),
    "list<int>": (_is_list_of_whole,),
    "list<string>": (_is_list_of_texts,),
}
# For error messages: the declared type that can hold the values of an Arrow type.
_DECLARE: Mapping[Callable[[pa.DataType], bool], str] = {
    pa.types.is_boolean: "int",
    pa.types.is_timestamp: "timestamp",
    pa.types.is_date: "date",
    pa.types.is_time: "time",
    _is_list_of_whole: "list<int>",
    _is_list_of_texts: "list<string>",
    pa.types.is_integer: "int",
    pa.types.is_floating: "float",
    pa.types.is_decimal: "float",
}


def _typed(
    values: pa.Array, column: Column, unit: str | None, time_zone: str
) -> tuple[pa.Array, np.ndarray | None]:
    """Returns n values in the declared type, and whether a value does not fit: (n,) bool; None if all fit."""
    kind, declared = values.type, column.type
    if pa.types.is_null(kind):
        return values.cast(VALUE_TYPES[declared]), None
    if unit is not None and pa.types.is_timestamp(kind):
        return instants(values, unit, time_zone), None
    if is_text(kind):
        return _with_mask(*typed_column(_utf8(values), column, [""], time_zone))
    if declared not in ("int", "float", "string") and can_hold(column, kind):
        return _with_mask(*stored_values(values, column, time_zone))
    if declared == "string":
        return _texts_of(values), None
    typed = _CONVERSIONS[declared](values, time_zone)
    present = nan_to_null(values) if pa.types.is_floating(kind) else values
    if typed.null_count == present.null_count:
        return typed, None
    return typed, pc.and_(present.is_valid(), typed.is_null()).to_numpy(zero_copy_only=False)


def _with_mask(typed: pa.Array, reasons: pa.Array | None) -> tuple[pa.Array, np.ndarray | None]:
    """Returns `typed`, and (n,) bool: whether a value has a reason for rejection; None without `reasons`."""
    return typed, None if reasons is None else reasons.is_valid().to_numpy(zero_copy_only=False)


def _utf8(values: pa.Array) -> pa.Array:
    """Returns texts or bytes as strings. Raises _InexactError if some texts are not UTF-8."""
    try:
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            values.validate(full=True)
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        is_large = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
        octets = values.cast(pa.large_binary() if is_large else pa.binary()).to_pylist()
        wrong = np.array([value is not None and not _is_utf8(value) for value in octets], bool)
        if not wrong.any():
            raise
        raise _InexactError(wrong) from None


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _texts_of(values: pa.Array) -> pa.Array:
    """Returns the texts of whole numbers. Raises _InexactError if a value is not exactly a whole number."""
    kind = values.type
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        wrong = not_exact(values).to_numpy(zero_copy_only=False)
        if wrong.any():
            raise _InexactError(wrong)
    return _decimal_texts(values) if pa.types.is_decimal(kind) else whole_number_texts(values)


def _decimal_texts(values: pa.Array) -> pa.Array:
    """Returns the texts of decimals that are whole numbers."""
    return values.cast(pa.decimal128(_MOST_DIGITS, 0)).cast(pa.string())


def _to_int(values: pa.Array, _: str) -> pa.Array:
    kind = values.type
    if pa.types.is_floating(kind):
        exact = pc.invert(not_exact(values))
        return pc.if_else(exact, nan_to_null(values.cast(pa.float64())), pa.scalar(None, pa.float64())).cast(
            pa.int64()
        )
    if pa.types.is_decimal(kind):
        whole = pc.if_else(not_exact(values), pa.scalar(None, kind), values)
        return integers(_decimal_texts(whole))
    if kind == pa.uint64():
        fits = pc.less_equal(values, pa.scalar(2**63 - 1, pa.uint64()))
        values = pc.if_else(fits, values, pa.scalar(None, pa.uint64()))
    return values.cast(pa.int64())


def _to_float(values: pa.Array, _: str) -> pa.Array:
    kind = values.type
    if pa.types.is_decimal(kind):  # a cast of decimals to floats is not correctly rounded
        values = values.cast(pa.string())
    elif pa.types.is_boolean(kind):
        values = values.cast(pa.int64())
    numbers = nan_to_null(values.cast(pa.float64(), safe=False))
    return pc.if_else(pc.less_equal(pc.abs(numbers), FLOAT32_MAX), numbers, pa.scalar(None, pa.float64()))


def _to_date(values: pa.Array, time_zone: str) -> pa.Array:
    kind = values.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        values = pc.local_timestamp(values.cast(pa.timestamp(kind.unit, time_zone)))
    return values.cast(pa.date32(), safe=False).cast(pa.int32()).cast(pa.int64())


def _to_timestamp(values: pa.Array, time_zone: str) -> pa.Array:
    """Returns the first instant of each date, in µs since 1970-01-01 UTC."""
    return stored_values(values.cast(pa.date32(), safe=False).cast(pa.timestamp("s")), _TIMESTAMP, time_zone)[
        0
    ]


_CONVERSIONS: Mapping[str, Callable[[pa.Array, str], pa.Array]] = {
    "int": _to_int,
    "float": _to_float,
    "date": _to_date,
    "timestamp": _to_timestamp,
}
_TIMESTAMP = Column(name="timestamp", type="timestamp")


def _converted_lists(values: pa.Array, column: Column) -> Converted:
    """Converts n lists to the declared type of a column. Null and empty elements are left out.

    A list with an element of a wrong type is malformed.
    """
    lists = values.cast(pa.list_(values.type.value_type))
    elements = lists.flatten()
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    row_of = np.repeat(np.arange(len(lists)), lengths)
    encoded = elements if isinstance(elements, pa.DictionaryArray) else elements.dictionary_encode()
    distinct, to = encoded.dictionary, _ELEMENTS[column.type]
    bad = np.zeros(len(distinct), bool)
    try:
        if pa.types.is_null(distinct.type):
            typed = distinct.cast(VALUE_TYPES[to])
        elif to == "string":
            typed = _utf8(distinct) if is_text(distinct.type) else _texts_of(distinct)
        else:
            typed = _to_int(distinct, UTC)
            present = nan_to_null(distinct) if pa.types.is_floating(distinct.type) else distinct
            bad = pc.and_(present.is_valid(), typed.is_null()).to_numpy(zero_copy_only=False)
    except _InexactError as error:
        wrong = rows_with(encoded, np.flatnonzero(error.wrong))
        raise NoTextError(column, int(row_of[wrong[0]]), _shown(elements, wrong[0]), len(wrong)) from None
    result = over_elements(lists, typed.take(encoded.indices))
    malformed = np.unique(row_of[rows_with(encoded, np.flatnonzero(bad))])
    if len(malformed):
        fits = np.ones(len(lists), bool)
        fits[malformed] = False
        result = result.take(pa.array(np.arange(len(lists)), mask=~fits))
    unwanted = None if to == "string" else pc.list_flatten(result).is_null()
    return Converted(without_elements(result, unwanted), malformed, reason_of(column))


def _shown(values: pa.Array, row: int) -> Any:
    """Returns a value as a Python object. Text that is not UTF-8 is returned as bytes."""
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    value = values.slice(int(row), 1)
    value = value.dictionary_decode() if pa.types.is_dictionary(values.type) else value
    return (value.cast(pa.binary()) if is_text(kind) else value)[0].as_py()


# The functions below convert columns of the types bool, date, timestamp, time, decimal, list<int> and
# list<string>.

_LARGEST = 2**63 - 1
_US_OF_UNIT = {"s": 10**6, "ms": 10**3, "us": 1}


def can_hold(column: Column, kind: pa.DataType) -> bool:
    """Returns whether `stored_values` can convert values of an Arrow type to a column's declared type.

    The column must have one of the types bool, date, timestamp, time, decimal, list<int> and list<string>.
    """
    if pa.types.is_dictionary(kind):
        return can_hold(column, kind.value_type)
    return pa.types.is_null(kind) or _is_text(kind) or _FITS[column.type](kind)


def stored_values(values: pa.Array, column: Column, time_zone: str = UTC) -> tuple[pa.Array, pa.Array | None]:
    """Converts n stored values to the type that operators receive.

    Returns the values, and an array of reasons (None if no value is rejected). As in
    `etl.raw.text_values.typed_column`, a value that does not fit is null, and has a reason. Timestamps are
    rounded down to µs. Timestamps without a time zone are interpreted in `time_zone`. NaN becomes null. A
    timestamp that does not fit into 64 bits in µs also becomes null. Null or empty elements of lists are left
    out.

    Args:
        values: n values of an Arrow type for which `can_hold` is true.
        column: a column of the type bool, date, timestamp, time, decimal, list<int> or list<string>.
        time_zone: IANA name of the time zone in which timestamps without a zone are interpreted.
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
    if column.type == "time":
        return _times_of_day(values, column)
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
    "time": pa.types.is_time,
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


def _times_of_day(values: pa.Array, column: Column) -> tuple[pa.Array, pa.Array | None]:
    """Returns times of day in µs since midnight, rounded down. A time outside of a day is malformed."""
    unit = values.type.unit
    raw = values.cast(pa.int32() if pa.types.is_time32(values.type) else pa.int64()).cast(pa.int64())
    micros = floor_divide_array(raw, 1000) if unit == "ns" else pc.multiply(raw, _US_OF_UNIT[unit])
    fits = pc.and_(pc.greater_equal(micros, 0), pc.less(micros, US_OF_DAY))
    good = pc.if_else(fits, micros, pa.scalar(None, pa.int64()))
    return good, _reasons(micros, good, f"time:{column.name}")


def _reasons(values: pa.Array, good: pa.Array, reason: str) -> pa.Array | None:
    bad = pc.and_(values.is_valid(), good.is_null())
    if not pc.any(bad).as_py():
        return None
    return pc.if_else(bad, pa.scalar(reason), pa.scalar(None, pa.string()))


def utc_micros(values: pa.Array, time_zone: str) -> pa.Array:
    """Returns n timestamps as int64 µs since 1970-01-01 UTC, rounded down.

    Timestamps without a time zone are interpreted in `time_zone`.
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
        micros = time_text.instants(np.where(nulls, 0, micros), time_zone)
    return pa.array(micros, pa.int64(), mask=nulls)
