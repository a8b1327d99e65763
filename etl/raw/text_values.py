"""Converts strings to typed values (the fields of lines, numbers and lists), and values to strings."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.lazy_imports import F
from conf.raw_types import NUMBER_TYPES, POINT, Column, ColumnType, DecimalSeparator, OperatorType
from conf.time_notation import UTC
from etl.raw.time_text import dates, times_of_day, timestamps
from storage.feature_spec import FLOAT32_MAX

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn

# The functions below convert arrays of strings to numbers.
#
# An integer has at most 64 bits. Its fraction, if it has one, consists of zeros: "17.0" is 17. A number is a
# decimal number within the range of float32. Arrow's cast alone would also accept strings such as "nan" and
# "inf". A decimal has no exponent and at most 38 digits, including leading and trailing zeros. It is rounded
# to the nearest double, with ties to even. A boolean is a string such as true, f, YES or 0, and becomes 1 or
# 0. Strings that do not follow these rules become null.

_INTEGER = r"^[+-]?[0-9]{1,19}([.]0*)?\z"  # in Java, `$` would also match before a line break at the end
_ZEROS = r"[.]0*$"

# A decimal number, which may have an exponent.
_NUMBER = r"^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?$"
_MOST_DIGITS = 38  # largest number of digits of a decimal in Spark, Arrow and Parquet
_DECIMAL = r"^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)$"
_BOOLEANS = {1: ("true", "t", "yes", "y", "1"), 0: ("false", "f", "no", "n", "0")}

# Integers of up to 18 digits fit into 64 bits. Longer integers are rare, so Python converts them one by one.
_SHORT_INTEGER = r"^-?[0-9]{1,18}$"
_IS_INTEGER = re.compile(r"[+-]?[0-9]{1,19}([.]0*)?")


def integers(text: pa.Array) -> pa.Array:
    """Converts an array of n strings to int64. A string that is not an integer becomes null."""
    if pc.any(pc.match_substring(text, ".")).as_py():
        is_integer = pc.fill_null(pc.match_substring_regex(text, _INTEGER), False)
        text = pc.if_else(is_integer, pc.replace_substring_regex(text, _ZEROS, ""), text)
    short = pc.fill_null(pc.match_substring_regex(text, _SHORT_INTEGER), False)
    values = pc.if_else(short, text, pa.scalar(None, pa.string())).cast(pa.int64())
    long = pc.and_(pc.invert(short), pc.fill_null(pc.match_substring_regex(text, _INTEGER), False))
    if not pc.any(long).as_py():
        return values
    converted = [
        int(t) if is_long and -(2**63) <= int(t) < 2**63 else v
        for t, is_long, v in zip(text.to_pylist(), long.to_pylist(), values.to_pylist(), strict=True)
    ]
    return pa.array(converted, pa.int64())


def integer_text(text: str) -> str | None:
    """Returns the integer that `integers` reads, as a string: `7` for `007` or `7.0`; None without one."""
    if not _IS_INTEGER.fullmatch(text):
        return None
    value = int(text.partition(".")[0])
    return str(value) if -(2**63) <= value < 2**63 else None


def integers_of_texts(text: SparkColumn) -> SparkColumn:
    """Converts a Spark column of strings to integers, as `integers` converts an array."""
    return F.when(text.rlike(_INTEGER), text.cast("bigint"))


def numbers(text: pa.Array) -> pa.Array:
    """Converts an array of n strings to doubles. A string that is not a number becomes null."""
    is_number = pc.fill_null(pc.match_substring_regex(text, _NUMBER), False)
    plain = pc.if_else(is_number, pc.utf8_ltrim(text, "+"), pa.scalar(None, pa.string()))
    values = plain.cast(pa.float64())
    return pc.if_else(pc.less_equal(pc.abs(values), FLOAT32_MAX), values, pa.scalar(None, pa.float64()))


# A number with a decimal comma, and with points between groups of three digits.
_WITH_GROUPS = r"^[+-]?[0-9]{1,3}([.][0-9]{3})+,[0-9]*([eE][+-]?[0-9]+)?$"


def with_decimal_points(text: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Returns strings in which points replace decimal commas: 12.5 for 12,5, and 1234.5 for 1.234,5.

    A string whose points do not separate groups of three digits before a comma becomes ",". All conversions
    to numbers reject this string.
    """
    with_points = pc.replace_substring(text, ",", ".")
    has_point = pc.match_substring(text, ".")
    if not pc.any(has_point).as_py():
        return with_points
    ungrouped = pc.replace_substring(pc.replace_substring(text, ".", ""), ",", ".")
    grouped = pc.if_else(pc.match_substring_regex(text, _WITH_GROUPS), ungrouped, ",")
    return pc.if_else(has_point, grouped, with_points)


def decimals(text: pa.Array) -> pa.Array:
    """Converts an array of n strings to doubles. A string with an exponent or over 38 digits becomes null."""
    digits = pc.binary_length(pc.replace_substring_regex(text, "[^0-9]", ""))
    fits = pc.and_(pc.match_substring_regex(text, _DECIMAL), pc.less_equal(digits, _MOST_DIGITS))
    return numbers(pc.if_else(pc.fill_null(fits, False), text, pa.scalar(None, pa.string())))


def booleans(text: pa.Array) -> pa.Array:
    """Converts an array of n strings, such as true, f, YES or 0, to int64: 1 or 0, or null for others."""
    lower = pc.ascii_lower(text)
    one, zero = (pc.is_in(lower, pa.array(_BOOLEANS[value], pa.string())) for value in (1, 0))
    return pc.if_else(pc.or_(one, zero), one.cast(pa.int64()), pa.scalar(None, pa.int64()))


# The functions below divide strings into lists of elements, in Arrow arrays. Empty elements are left out.


def text_lists(text: pa.Array, separator: str) -> pa.Array:
    """Divides n strings at a separator. Returns lists of strings without empty ones; null stays null."""
    return without_elements(pc.split_pattern(text, separator), None)


def integer_lists(text: pa.Array, separator: str) -> pa.Array:
    """Divides n strings at a separator (`text_lists`), and converts the elements to int64.

    The list is null if one of its elements is not an integer of 64 bits.
    """
    lists = text_lists(text, separator)
    elements = pc.list_flatten(lists)
    numbers = integers(elements)
    result = _with_elements(lists, numbers)
    if not numbers.null_count:
        return result
    wrong = np.zeros(len(lists), bool)
    wrong[np.asarray(pc.list_parent_indices(lists))[np.asarray(numbers.is_null())]] = True
    return pc.if_else(pa.array(wrong), pa.scalar(None, result.type), result)


def without_elements(lists: pa.Array, unwanted: pa.Array | None) -> pa.Array:
    """Returns lists without some elements.

    Args:
        lists: n lists, some of them null.
        unwanted: a boolean for each element of `pc.list_flatten(lists)`. If it is None, nulls and empty
            strings are left out.
    """
    flat = pc.list_flatten(lists)
    if unwanted is None:
        unwanted = pc.fill_null(pc.equal(flat, ""), True)
    dropped = np.asarray(unwanted)
    if not dropped.any():
        return _with_elements(lists, flat)
    parents = np.asarray(pc.list_parent_indices(lists))
    lengths = np.bincount(parents[~dropped], minlength=len(lists))
    return _lists(lengths, lists, flat.filter(pa.array(~dropped)))


def _with_elements(lists: pa.Array, elements: pa.Array) -> pa.Array:
    """Returns lists with the lengths and nulls of `lists`, and with the elements `elements`."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return _lists(lengths, lists, elements)


def _lists(lengths: np.ndarray, like: pa.Array, elements: pa.Array) -> pa.Array:
    """Divides `elements` into n lists of the given lengths, (n,). A list is null where `like` is null."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    nulls = np.append(like.is_null().to_numpy(zero_copy_only=False), False)
    starts = pa.array(offsets, pa.int32(), mask=nulls) if nulls.any() else pa.array(offsets, pa.int32())
    return pa.ListArray.from_arrays(starts, elements)


# The functions below split lines into fields, and convert fields to typed values.
#
# A malformed field causes the rejection of its row, but does not stop the job.

# The types of the arrays that `typed_column` returns.
ARROW_TYPES: Mapping[OperatorType, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "string": pa.string(),
    "ints": pa.list_(pa.int64()),
    "strings": pa.list_(pa.string()),
}

# For each type whose fields may be malformed: the reason for rejecting the row, and the function that
# converts fields.
_CONVERT: Mapping[ColumnType, tuple[str, Callable[[pa.Array, Column, str], pa.Array]]] = {
    "int": ("integer", lambda text, column, zone: integers(text)),
    "float": ("number", lambda text, column, zone: numbers(text)),
    "bool": ("boolean", lambda text, column, zone: booleans(text)),
    "decimal": ("decimal", lambda text, column, zone: decimals(text)),
    "date": ("date", lambda text, column, zone: dates(text, column.format)),
    "timestamp": ("timestamp", lambda text, column, zone: timestamps(text, column.format, zone)),
    "time": ("time", lambda text, column, zone: times_of_day(text, column.format)),
    "list<int>": ("list", lambda text, column, zone: integer_lists(text, column.element_separator)),
}


def split_fields(text: pa.Array, separator: str, width: int, quoted: bool) -> tuple[list[pa.Array], pa.Array]:
    """Splits n lines. Returns `width` arrays with n fields each, and an array with n reasons.

    The reason of a line with exactly `width` fields is null. Any other line is rejected: it has null fields
    and a reason.
    """
    lists = pc.split_pattern(text, separator)
    if quoted and pc.any(pc.match_substring(text, '"')).as_py():
        lists = _split_quoted(text, separator)
    whole = pc.fill_null(pc.equal(pc.list_value_length(lists), width), False)
    null = pa.scalar(None, pa.string())
    reasons = pc.if_else(pc.is_null(lists), REASON, pc.if_else(whole, null, "field_count"))
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

    The list is null for a line that violates the rule for double quotes (`split_line`).
    """
    return pa.array([split_line(line, separator) for line in text.to_pylist()], pa.list_(pa.string()))


def typed_column(
    raw: pa.Array,
    column: Column,
    null_values: Sequence[str],
    time_zone: str = UTC,
    decimal_separator: DecimalSeparator = POINT,
) -> tuple[pa.Array, pa.Array | None]:
    """Converts n fields to typed values. Returns an array of n values, and an array of n reasons or None.

    A field that is one of `null_values` becomes null. A malformed field also becomes null, and its reason
    says why. The reasons of all other fields are null. If no field is malformed, the second result is None.

    Args:
        raw: (n,) strings.
        column: name, type, time format and separator of elements.
        null_values: strings that mean null.
        time_zone: the IANA name of the zone of times without an offset.
        decimal_separator: the character before the decimals of a number.

    Returns:
        The values have the Arrow type in `ARROW_TYPES` for the operator type of the column. A bool is 1 or 0,
        a date is a number of days since 1970-01-01, a timestamp is a number of µs since 1970-01-01 UTC, and a
        time is a number of µs since midnight.
    """
    null = pa.scalar(None, pa.string())
    if raw.offset:  # pyarrow 14's if_else returns wrong strings for a slice of an array
        raw = raw.take(pa.array(np.arange(len(raw))))
    text = pc.if_else(pc.is_in(raw, value_set=pa.array(null_values, pa.string())), null, raw)
    if column.type == "string":
        return text, None
    if column.type == "list<string>":
        return text_lists(text, column.element_separator), None
    kind, convert = _CONVERT[column.type]
    has_comma = decimal_separator != POINT and column.type in NUMBER_TYPES
    values = convert(with_decimal_points(text) if has_comma else text, column, time_zone)
    bad = pc.and_(pc.is_valid(text), pc.is_null(values))
    if not pc.any(bad).as_py():
        return values, None
    return values, pc.if_else(bad, f"{kind}:{column.name}", null)


# The functions below split CSV lines with double quotes by the strict rule of RFC 4180.
#
# A field that contains a double quote must begin and end with a double quote, and each double quote inside
# the field must be doubled. A line that violates this rule is rejected with the reason `quote`. The usual
# cause is a field with a line break, which divides a row into two lines.

REASON = "quote"


@lru_cache(maxsize=16)
def _patterns(separator: str) -> tuple[str, str]:
    """Returns two regular expressions: for a valid line, and for a field with the separator after it.

    All repetitions are possessive, so a match does not backtrack, even on a long line.
    """
    end = f"\\{separator}" if separator in string.punctuation else separator
    field = f'(?:"[^"]*+(?:""[^"]*+)*+"|[^"{end}]*+)'
    return f"(?:{field}{end})*+{field}", f"({field}){end}"


def split_line(line: str, separator: str) -> list[str] | None:
    """Returns the fields of a line without their quotes; None if the line violates the rule for quotes."""
    if '"' not in line:
        return line.split(separator)
    line_pattern, field_pattern = _patterns(separator)
    if not re.fullmatch(line_pattern, line):
        return None
    fields = re.findall(field_pattern, line + separator)
    return [field[1:-1].replace('""', '"') if field.startswith('"') else field for field in fields]


# The functions below convert values to strings, which are then hashed, counted or looked up.
#
# Both engines, `sql` and `arrow`, convert a value to the same bytes.

# Maps types of floats to a bound. Below the bound, floats of the type represent every integer exactly. At and
# above it, an integer may have been rounded. The keys are Arrow's names of the types. `Stored.kind` has the
# same names (etl/raw/file_columns.py).
EXACT_BELOW = {"halffloat": 2.0**11, "float": 2.0**24, "double": 2.0**53}
WHOLE_RULE = (
    "only a whole number can be read as text; a float must also be below 2⁵³ (2²⁴ for 32 bits), because "
    "larger floats may have been rounded"
)

# Separator and null in joined strings. They are control characters, which strings in logs rarely contain.
SEPARATOR, MISSING = "\x1f", "\x00"

# Characters with a meaning in a regular expression.
_SPECIAL = re.compile(r"([\\^$.|?*+()\[\]{}])")


def literal_pattern(text: str) -> str:
    """Returns a regular expression that matches only the string `text`.

    re.escape would also escape tabs and blanks, which the RAPIDS accelerator does not support.
    """
    return _SPECIAL.sub(r"\\\1", text)


def text_column(value: SparkColumn) -> SparkColumn:
    """Returns a Spark expression for a value as a string."""
    return value.cast("string")


def text_array(values: pa.Array) -> pa.Array:
    """Returns n values as strings, shape (n,)."""
    return values if pa.types.is_string(values.type) else values.cast(pa.string())


def nan_to_null(values: pa.Array) -> pa.Array:
    """Returns an array of floats with null instead of NaN."""
    return pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)


def not_exact(values: pa.Array) -> pa.Array:
    """Returns which of n floats or decimals are not certainly exact integers: n booleans.

    These are fractions, infinity, and floats that may have been rounded. Null and NaN are not among them.
    """
    kind = values.type
    if pa.types.is_decimal(kind):
        return pc.fill_null(pc.not_equal(values, pc.trunc(values)), False)
    numbers = nan_to_null(values.cast(pa.float64()))
    limit = EXACT_BELOW[str(kind)]
    wrong = pc.or_(pc.not_equal(numbers, pc.trunc(numbers)), pc.greater_equal(pc.abs(numbers), limit))
    return pc.fill_null(wrong, False)


def whole_number_texts(values: pa.Array) -> pa.Array:
    """Returns whole numbers as strings.

    The values must be integers, or floats or decimals for which `not_exact` is false. NaN becomes null.
    """
    kind = values.type
    if pa.types.is_floating(kind):
        return nan_to_null(values.cast(pa.float64())).cast(pa.int64()).cast(pa.string())
    if pa.types.is_decimal(kind):
        texts = [None if value is None else str(int(value)) for value in values.to_pylist()]
        return pa.array(texts, pa.string())
    return values.cast(pa.string())


def joined_column(values: Sequence[SparkColumn]) -> SparkColumn:
    """Returns a Spark expression that joins the values of several columns into one string.

    The string is null if all values of the row are null. If there is only one column, the result is its value
    as a string.
    """
    if len(values) == 1:
        return text_column(values[0])
    parts = [F.coalesce(text_column(value), F.lit(MISSING)) for value in values]
    all_null = values[0].isNull()
    for value in values[1:]:
        all_null = all_null & value.isNull()
    return F.when(~all_null, F.concat_ws(SEPARATOR, *parts))


def joined_array(values: Sequence[pa.Array]) -> pa.Array:
    """Joins arrays of n values into one array of n strings, the same strings as `joined_column` returns."""
    if len(values) == 1:
        return text_array(values[0])
    parts = [pc.fill_null(text_array(array), MISSING) for array in values]
    joined = pc.binary_join_element_wise(*parts, SEPARATOR)
    all_null = np.logical_and.reduce([array.is_null().to_numpy(zero_copy_only=False) for array in values])
    return pc.if_else(pa.array(all_null), pa.scalar(None, pa.string()), joined)


def over_elements(values: pa.Array, elements: pa.Array) -> pa.Array:
    """Returns a list array with the lengths and nulls of `values`, and with the elements of `elements`."""
    lists = values.cast(pa.list_(values.type.value_type))
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    nulls = lists.is_null().to_numpy(zero_copy_only=False)
    starts = pa.array(offsets, mask=np.append(nulls, False)) if nulls.any() else pa.array(offsets)
    return pa.ListArray.from_arrays(starts, elements)
