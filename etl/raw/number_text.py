"""Converts texts to numbers by one rule, in Arrow arrays and with Spark expressions.

An integer has at most 64 bits. Its fraction, if it has one, consists of zeros: "17.0" is 17. A number is a
decimal number within the range of float32; a cast alone would also accept "1d", "1f", "NaN" and surrounding
blanks. All other texts become null. A decimal has no exponent and at most 38 digits, leading and final zeros
included; it is rounded to the nearest double, and to the one with an even last bit if two are as near. A
boolean is 1 or 0.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from storage.feature_spec import FLOAT32_MAX

_INTEGER = r"^[+-]?[0-9]{1,19}([.]0*)?$"
_ZEROS = r"[.]0*$"
# [.] instead of \., because the accelerator does not support a repeated escaped character.
_NUMBER = r"^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?$"
_MOST_DIGITS = 38  # of a decimal: those of Spark, Arrow and Parquet
_DECIMAL = r"^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)$"
_BOOLEANS = {1: ("true", "t", "yes", "y", "1"), 0: ("false", "f", "no", "n", "0")}
# Integers of up to 18 digits fit into 64 bits. Arrow converts longer ones one by one, because they are rare.
_SHORT_INTEGER = r"^-?[0-9]{1,18}$"


def integers(text: pa.Array) -> pa.Array:
    """Converts an array of n texts to int64."""
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


def numbers(text: pa.Array) -> pa.Array:
    """Converts an array of n texts to doubles."""
    is_number = pc.fill_null(pc.match_substring_regex(text, _NUMBER), False)
    plain = pc.if_else(is_number, pc.utf8_ltrim(text, "+"), pa.scalar(None, pa.string()))
    values = plain.cast(pa.float64())
    return pc.if_else(pc.less_equal(pc.abs(values), FLOAT32_MAX), values, pa.scalar(None, pa.float64()))


def decimals(text: pa.Array) -> pa.Array:
    """Converts an array of n texts to doubles. A text with an exponent or over 38 digits becomes null."""
    digits = pc.binary_length(pc.replace_substring_regex(text, "[^0-9]", ""))
    fits = pc.and_(pc.match_substring_regex(text, _DECIMAL), pc.less_equal(digits, _MOST_DIGITS))
    return numbers(pc.if_else(pc.fill_null(fits, False), text, pa.scalar(None, pa.string())))


def booleans(text: pa.Array) -> pa.Array:
    """Converts an array of n texts, such as true, f, YES or 0, to int64: 1 or 0."""
    lower = pc.ascii_lower(text)
    one, zero = (pc.is_in(lower, pa.array(_BOOLEANS[value], pa.string())) for value in (1, 0))
    return pc.if_else(pc.or_(one, zero), one.cast(pa.int64()), pa.scalar(None, pa.int64()))
