"""Splits lines into fields, and converts fields to typed values.

A malformed field only rejects its row and does not stop the job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.raw_types import Column, ColumnType, OperatorType
from conf.time_types import UTC
from etl.raw import quotes
from etl.raw.list_text import integer_lists, text_lists
from etl.raw.number_text import booleans, decimals, integers, numbers
from etl.raw.time_text import dates, timestamps

# The types of the arrays that `typed_column` returns.
ARROW_TYPES: Mapping[OperatorType, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "string": pa.string(),
    "ints": pa.list_(pa.int64()),
    "strings": pa.list_(pa.string()),
}
# For each type whose texts may be malformed: the reason, and the function that converts texts.
_CONVERT: Mapping[ColumnType, tuple[str, Callable[[pa.Array, Column, str], pa.Array]]] = {
    "int": ("integer", lambda text, column, zone: integers(text)),
    "float": ("number", lambda text, column, zone: numbers(text)),
    "bool": ("boolean", lambda text, column, zone: booleans(text)),
    "decimal": ("decimal", lambda text, column, zone: decimals(text)),
    "date": ("date", lambda text, column, zone: dates(text, column.format)),
    "timestamp": ("timestamp", lambda text, column, zone: timestamps(text, column.format, zone)),
    "list<int>": ("list", lambda text, column, zone: integer_lists(text, column.element_separator)),
}


def split_fields(text: pa.Array, separator: str, width: int, quoted: bool) -> tuple[list[pa.Array], pa.Array]:
    """Splits n lines. Returns `width` arrays with n fields each, and an array with n reasons.

    The reason of a line with exactly `width` fields is null. Any other line is rejected: its fields are null,
    and its reason says why.
    """
    lists = pc.split_pattern(text, separator)
    if quoted and pc.any(pc.match_substring(text, '"')).as_py():
        lists = _split_quoted(text, separator)
    whole = pc.fill_null(pc.equal(pc.list_value_length(lists), width), False)
    null = pa.scalar(None, pa.string())
    reasons = pc.if_else(pc.is_null(lists), quotes.REASON, pc.if_else(whole, null, "field_count"))
    flat = pc.list_flatten(pc.filter(lists, whole))
    count = len(flat) // width
    if not count:
        return [pa.nulls(len(text), pa.string()) for _ in range(width)], reasons
    # Index of a line among the lines without errors. Other lines have -1, which becomes a null index, so that
    # `take` returns null.
    whole_index = np.where(np.asarray(whole), np.cumsum(np.asarray(whole)) - 1, -1)
    first_field = pa.array(np.where(whole_index >= 0, whole_index * width, 0), mask=whole_index < 0)
    return [pc.take(flat, pc.add(first_field, index)) for index in range(width)], reasons


def _split_quoted(text: pa.Array, separator: str) -> pa.Array:
    """Returns the list of fields of each line, as an array of lists.

    The list is null for a line that violates the rule for double quotes (etl/raw/quotes.py).
    """
    return pa.array([quotes.split_line(line, separator) for line in text.to_pylist()], pa.list_(pa.string()))


def typed_column(
    raw: pa.Array, column: Column, null_values: Sequence[str], time_zone: str = UTC
) -> tuple[pa.Array, pa.Array | None]:
    """Converts n fields to typed values. Returns an array of n values, and an array of n reasons or None.

    A field that is one of `null_values` becomes null. A malformed field also becomes null, and its reason
    says what is wrong. The reasons of all other fields are null. If no field is malformed, the result is None
    instead of the reasons.

    Args:
        raw: (n,) texts.
        column: name, type, time format and separator of elements.
        null_values: texts that stand for null.
        time_zone: the IANA name of the zone of times without an offset.

    Returns:
        The values have the Arrow type that `ARROW_TYPES` has for the operator type of the column. A bool is 1
        or 0, a date is a number of days since 1970-01-01, and a timestamp is a number of µs since then.
    """
    null = pa.scalar(None, pa.string())
    if raw.offset:  # pyarrow 14's if_else returns other texts for a slice of an array
        raw = raw.take(pa.array(np.arange(len(raw))))
    text = pc.if_else(pc.is_in(raw, value_set=pa.array(null_values, pa.string())), null, raw)
    if column.type == "string":
        return text, None
    if column.type == "list<string>":
        return text_lists(text, column.element_separator), None
    kind, convert = _CONVERT[column.type]
    values = convert(text, column, time_zone)
    bad = pc.and_(pc.is_valid(text), pc.is_null(values))
    if not pc.any(bad).as_py():
        return values, None
    return values, pc.if_else(bad, f"{kind}:{column.name}", null)
