"""Writes rows of binary formats as text for the quarantine: JSON in the form of Spark's `to_json`."""

from __future__ import annotations

import base64
import datetime
import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.readers.arrow_values import instants, one_array

# Spark writes the code of a control character in upper case.
_CODE = re.compile(r"\\u00[0-9a-f]{2}")
# Java writes numbers of this size without an exponent.
_SMALLEST, _LARGEST = 1e-3, 1e7


def row_texts(columns: Mapping[str, pa.Array | pa.ChunkedArray], rows: int) -> list[str]:
    """Returns the JSON of n rows. Nulls are left out.

    Timestamps are integers of their unit. Timestamps of 96 bits must be converted first. Floats are written
    with the fewest digits that identify them, as Java does since version 19.

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
