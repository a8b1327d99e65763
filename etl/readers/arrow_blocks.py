"""Converts an Arrow table of stored rows to a block of typed rows, for readers of binary formats.

Rejected rows are written as text for the quarantine: JSON in the form of Spark's `to_json`.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.raw_types import EventTime, RawTable
from etl.raw.file_columns import missing_columns
from etl.readers.arrow_values import (
    NoTextError,
    convert,
    instants,
    malformed_rows,
    null_values,
    one_array,
    reason_of,
    require_type,
    time_zone_of,
)
from etl.readers.base import RawBlock

# Spark writes the code of a control character in upper case.
_CODE = re.compile(r"\\u00[0-9a-f]{2}")
# Java writes numbers from _SMALLEST to below _LARGEST without an exponent.
_SMALLEST, _LARGEST = 1e-3, 1e7


def row_texts(columns: Mapping[str, pa.Array | pa.ChunkedArray], rows: int) -> list[str]:
    """Returns the JSON of n rows. Nulls are left out.

    A timestamp is written as an integer in its unit. The caller must have converted timestamps of 96 bits.
    Floats are written with the fewest digits that identify them, as Java does since version 19.

    Args:
        columns: maps the name of each column to its n values, in the order in which columns are written.
        rows: the number n of rows.
    """
    parts = []
    for name, values in columns.items():
        array = one_array(values)
        if pa.types.is_timestamp(array.type):
            array = instants(array, array.type.unit)
        encoded = _encoded(array)
        key = _text(name)
        members = [f"{key}:{_value(value)}" for value in _python_values(encoded.dictionary)]
        parts.append(pa.array(members, pa.string()).take(encoded.indices))
    # Arrow returns null for a row in which all parts are null. So the first part is an empty text, which is
    # never null.
    empty = pa.array([""]).take(pa.array(np.zeros(rows, np.int32)))
    joined = pc.binary_join_element_wise(empty, *parts, ",", null_handling="skip")
    return [f"{{{text[1:]}}}" for text in joined.to_pylist()]


def _encoded(array: pa.Array) -> pa.DictionaryArray:
    if pa.types.is_dictionary(array.type):  # removes values of the dictionary that occur only in other rows
        array = array.dictionary_decode()
    if pa.types.is_nested(array.type):  # Arrow cannot find the distinct values of lists
        indices = pa.array(np.arange(len(array), dtype=np.int32), mask=np.asarray(array.is_null()))
        return pa.DictionaryArray.from_arrays(indices, array)
    return array.dictionary_encode()


def _python_values(values: pa.Array) -> list[Any]:
    """Returns the values of an array as Python objects, except floats of 32 bits, which are NumPy objects."""
    if pa.types.is_float32(values.type):
        return list(values.to_numpy(zero_copy_only=False))
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        octets = values.cast(pa.large_binary() if pa.types.is_large_string(values.type) else pa.binary())
        return [None if value is None else value.decode(errors="replace") for value in octets.to_pylist()]
    if pa.types.is_duration(values.type):
        return list(values.cast(pa.int64()).to_pylist())
    return list(values.to_pylist())


def _value(value: Any) -> str:
    """Returns the JSON of a value that is not null."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float | np.floating):
        return _float(value)
    if isinstance(value, int | Decimal):
        return str(value)
    if isinstance(value, bytes):
        return f'"{base64.b64encode(value).decode()}"'
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, datetime.date | datetime.time):
        return f'"{value.isoformat()}"'
    if isinstance(value, list | tuple):
        return f"[{','.join('null' if element is None else _value(element) for element in value)}]"
    if isinstance(value, dict):
        members = (f"{_text(name)}:{_value(one)}" for name, one in value.items() if one is not None)
        return f"{{{','.join(members)}}}"
    return _text(str(value))


def _text(text: str) -> str:
    return _CODE.sub(lambda code: f"\\u{code[0][2:].upper()}", json.dumps(text, ensure_ascii=False))


def _float(value: float | np.floating[Any]) -> str:
    """Returns a float as Java writes it: 0.001, 1.5, 1.0E7."""
    if math.isnan(value):
        return '"NaN"'
    if math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    if value == 0 or _SMALLEST <= abs(float(value)) < _LARGEST:
        return np.format_float_positional(value, trim="0")
    mantissa, _, exponent = np.format_float_scientific(value, trim="0").partition("e")
    return f"{mantissa}E{int(exponent)}"


# The functions below convert an Arrow table of stored rows to a block of typed rows.


def check_schema(path: str, schema: pa.Schema, table: RawTable, event_time: EventTime | None) -> list[str]:
    """Checks that a file has the listed columns, and that the declared types can hold their values.

    Args:
        path: the file, for error messages.
        schema: the columns of the file. A name that occurs twice counts as missing.
        table: names and types of the columns.
        event_time: the section `log.event_time`; None for a table without times.

    Returns:
        For each column of the table that is in the file, its name in the file.

    Raises:
        DataError: the file lacks a column, or has a column of a type that cannot be read.
        ConfigError: a column has a type that its declared type cannot hold.
    """
    names = [name for name in schema.names if schema.names.count(name) == 1]
    missing = [
        column.source_name
        for column in table.columns
        if column.source_name not in names and not column.optional
    ]
    if missing:
        raise missing_columns(path, missing, schema.names)
    stored = [column for column in table.columns if column.source_name in names]
    for column in stored:
        is_time = event_time is not None and column.name == event_time.column
        require_type(path, column, schema.field(column.source_name).type, is_time)
    return list(dict.fromkeys(column.source_name for column in stored))


def typed_block(
    rows: pa.Table,
    table: RawTable,
    event_time: EventTime | None,
    wanted: Collection[str],
    path: str,
    rows_before: Callable[[], int],
) -> RawBlock:
    """Returns n stored rows as a block, with the values converted to the declared types.

    Args:
        rows: the columns of the table that are in the file, by their names in the file. Other columns of the
            table are null.
        table: names and types of the columns.
        event_time: the section `log.event_time`; None for a table without times.
        wanted: the columns to return. The values of other columns are only checked.
        path: the file, for error messages.
        rows_before: returns the number of rows of the file before `rows`, for error messages.

    Raises:
        DataError: a value in a string column cannot be written exactly as text.
    """
    is_time = event_time.column if event_time else None
    columns: dict[str, pa.Array] = {}
    malformed: dict[int, str] = {}
    exact_time = None
    time_zone = time_zone_of(table)
    for column in table.columns:
        is_wanted = column.name in wanted or column.name == is_time
        if column.source_name not in rows.column_names:
            if is_wanted:
                columns[column.name] = null_values(column, len(rows))
            continue
        values = rows.column(column.source_name)
        unit = None
        if column.name == is_time and column.type == "int" and event_time is not None:
            unit = event_time.unit
            exact_time = instants(values, "us", time_zone) if pa.types.is_timestamp(values.type) else None
        try:
            if is_wanted:
                converted = convert(values, column, unit, time_zone)
                columns[column.name], bad = converted.values, converted.malformed
            else:
                bad = malformed_rows(values, column, time_zone)
        except NoTextError as error:
            raise error.error(path, rows_before()) from None
        for row in bad.tolist():
            malformed.setdefault(row, reason_of(column))
    return RawBlock(
        bytes=int(rows.nbytes),
        lines=len(rows),
        row_lines=np.arange(len(rows), dtype=np.int64),
        columns=columns,
        counts={},
        broken={},
        malformed=malformed,
        texts=partial(_texts, rows),
        exact_time=exact_time,
    )


def _texts(rows: pa.Table, lines: Sequence[int]) -> list[str]:
    """Returns the rows with the indices `lines` as JSON."""
    taken = rows.take(pa.array(lines, pa.int64()))
    return row_texts(dict(zip(taken.column_names, taken.columns, strict=True)), len(taken))
