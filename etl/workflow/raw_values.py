"""Converts columns of a caller's table to the types that chains read, as the parser of logs converts fields.

The parser converts the fields of a line to int64, float64 and strings, and empty fields to null. A table may
have other types for the same values: nullable integers of pandas are floats with NaN, and texts may be
dictionary-encoded. The rule is the same as for Parquet logs (etl/readers/arrow_values.py): a whole number
that was certainly not rounded becomes an integer, or the integer's text. Any other value whose meaning is not
clear is an error, because the model could read it differently than in training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import DataError
from etl.ops.base import LISTS, Type
from etl.raw.text_values import EXACT_BELOW, nan_to_null, not_exact, whole_number_texts
from etl.workflow.chains import Chain, FittedChain
from storage.feature_spec import FLOAT32_MAX

# pa.scalar would import pandas, and the start of each job would take a quarter of a second longer.
_NULL_TEXT = pa.nulls(1, pa.string())[0]
_BOUNDS = {"double": "2⁵³", "float": "2²⁴", "halffloat": "2¹¹"}
_LONGEST_SHOWN = 60

# Maps the type of a column to the error text for a number with decimals.
_NOT_WHOLE = {
    "int": "is not a whole number; a column of type int accepts only whole numbers",
    "string": "is not a whole number; a column of type string accepts only strings and whole numbers",
}


def raw_types(chains: Sequence[Chain | FittedChain]) -> dict[str, Type]:
    """Returns the raw columns that chains read, with their types, in the order of the chains."""
    return {name: kind for chain in chains for name, kind in zip(chain.inputs, chain.types, strict=True)}


def raw_values(rows: pa.Table, types: Mapping[str, Type]) -> dict[str, pa.Array]:
    """Returns an array for each column in `types`, as int64, float64, string, or lists of int64 or string.

    NaN and empty texts become null. Other columns of the table are ignored.

    Args:
        rows: a table of n rows.
        types: maps the name of each raw column to its type.

    Raises:
        DataError: columns are missing, or a value has another type or is out of range. The message contains
            the column, the row (from 0) and the value.
    """
    require_columns(rows, types)
    return {name: _converted(name, rows.column(name), kind) for name, kind in types.items()}


def column_types(rows: pa.Table, names: Sequence[str], declared: Mapping[str, Type]) -> dict[str, Type]:
    """Returns the type of some columns of a caller's table: the declared type, or the type of the values.

    The type of integers, booleans, dates, timestamps and times of day is int. The type of other numbers is
    float. The type of texts and of categorical columns with texts is string. The type of lists is ints or
    strings.

    Raises:
        DataError: columns are missing, or a column without a declared type has values of another type.
    """
    require_columns(rows, names)
    return {
        name: declared[name] if name in declared else _type_of(name, rows.schema.field(name).type)
        for name in names
    }


def _type_of(name: str, kind: pa.DataType) -> Type:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_null(kind):
        raise DataError(
            f"column {name} has only nulls, so its type is not known", "declare its type in `types`"
        )
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    single = kind.value_type if is_list else kind
    if pa.types.is_integer(single):
        return "ints" if is_list else "int"
    if any(fits(kind) for fits in _AS_INTEGERS):
        return "int"
    if pa.types.is_string(single) or pa.types.is_large_string(single):
        return "strings" if is_list else "string"
    if not is_list and (pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        return "float"
    raise _wrong_type(name, kind, "integers, floats, strings, or lists of integers or strings")


def require_columns(rows: pa.Table, names: Iterable[str]) -> None:
    """Raises DataError if a table lacks one of the columns `names`."""
    missing = [name for name in names if name not in rows.column_names]
    if missing:
        raise DataError(
            f"the rows lack the columns {missing}; the columns that were found are {rows.column_names}",
            "add these columns, with the names of the log; a column of nulls means that its values are "
            "not known",
        )


def one_row(chains: Sequence[Chain | FittedChain], raw: Mapping[str, Any]) -> dict[str, pa.Array]:
    """Returns one raw row as arrays of length 1, one array for each column that the chains read.

    NaN becomes null. A column that is not in `raw` is null too. True and false become 1 and 0, as in a log.

    Raises:
        ValueError: a value does not fit its column's type.
    """
    return {
        name: _one_value(name, raw.get(name), kind)
        for chain in chains
        for name, kind in zip(chain.inputs, chain.types, strict=True)
    }


def _one_value(name: str, value: Any, kind: Type) -> pa.Array:
    """Converts a value to an array with the type of its column. Raises ValueError if it does not fit."""
    if isinstance(value, float) and math.isnan(value):
        value = None
    if isinstance(value, bool) and kind in ("int", "float"):
        value = int(value)
    if isinstance(value, float) and kind in ("int", "string"):
        value = _whole(name, value, kind)
    if kind == "string" and isinstance(value, list | tuple):
        raise ValueError(f"{name}={value!r} is not of type {kind}")
    if kind == "string" and value is not None:
        value = str(value)
    # Refuse a text, because Arrow would split it into a list of characters.
    if kind in LISTS and isinstance(value, str):
        raise ValueError(f"{name}={value!r} is not of type {kind}")
    try:
        array = pa.array([value], _ARROW_TYPES[kind])
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeError) as error:
        raise ValueError(f"{name}={value!r} is not of type {kind}") from error
    if (
        kind == "float" and value is not None and not abs(value) <= FLOAT32_MAX
    ):  # the parser of logs also rejects numbers beyond float32
        raise ValueError(f"{name}={value!r} is outside the range of float32")
    return array


def _whole(name: str, value: float, kind: Type) -> int:
    """Converts a float to an integer. Raises ValueError unless the float is certainly an exact integer."""
    if not value.is_integer() or abs(value) >= EXACT_BELOW["double"]:
        raise ValueError(f"{name}={value!r} is not of type {kind}")
    return int(value)


def as_number(values: pa.Array) -> float | int | list[int] | None:
    """Returns the single element of an array as a Python value."""
    value = values[0].as_py()
    return float(np.float32(value)) if isinstance(value, float) else value


def _converted(name: str, column: pa.ChunkedArray, kind: Type) -> pa.Array:
    values = column.combine_chunks()
    if isinstance(values, pa.ChunkedArray):  # the column has no chunks, or is too large for one chunk
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    if isinstance(values, pa.DictionaryArray):
        values = values.dictionary_decode()
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), _ARROW_TYPES[kind])
    return _CONVERT[kind](name, values)


def _to_int(name: str, values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_boolean(kind):
        return values.cast(pa.int64())
    if pa.types.is_date(kind):
        return values.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
    if pa.types.is_timestamp(kind):
        return _microseconds(name, values)
    if pa.types.is_time(kind):
        return values.cast(pa.time64("us"), safe=False).cast(pa.int64())
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        values, kind = _integers(name, values, "int"), pa.int64()
    if not pa.types.is_integer(kind):
        raise _wrong_type(name, kind, "integers")
    if kind == pa.uint64():
        _require(
            name,
            values,
            pc.fill_null(pc.greater(values, pa.scalar(2**63 - 1, pa.uint64())), False),
            "is 2⁶³ or more, so it does not fit into 64 bits",
            "correct the value",
        )
    return values.cast(pa.int64())


def _microseconds(name: str, values: pa.Array) -> pa.Array:
    """Returns timestamps as µs since 1970-01-01 UTC, rounded down. They must have a time zone."""
    if values.type.tz is None:
        raise DataError(
            f"column {name} has timestamps without a time zone, so their instants are not known",
            "give them the time zone of the log (log.time_zone), for example with pandas' dt.tz_localize",
        )
    rounded = pc.floor_temporal(values, unit="microsecond") if values.type.unit == "ns" else values
    return rounded.cast(pa.timestamp("us", values.type.tz), safe=False).cast(pa.int64())


def _integers(name: str, values: pa.Array, kind: str) -> pa.Array:
    """Returns floats or decimals as integers (int64), with null for NaN.

    Raises:
        DataError: a value is not certainly an exact integer.
    """
    is_decimal = pa.types.is_decimal(values.type)
    numbers = values if is_decimal else nan_to_null(values.cast(pa.float64()))
    remedy = "correct the value, or pass integers, such as pandas' Int64"
    fraction = pc.fill_null(pc.not_equal(numbers, pc.trunc(numbers)), False)
    _require(name, values, fraction, _NOT_WHOLE[kind], remedy)
    rounded = f"is a float of {_BOUNDS.get(str(values.type))} or more, which may have been rounded"
    _require(name, values, not_exact(values), rounded, remedy)
    if not is_decimal:
        return numbers.cast(pa.int64())
    integers = [None if value is None else int(value) for value in values.to_pylist()]
    beyond = [value is not None and not -(2**63) <= value < 2**63 for value in integers]
    _require(name, values, pa.array(beyond, pa.bool_()), "is beyond 64 bits", "correct the value")
    return pa.array(integers, pa.int64())


def _to_float(name: str, values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_boolean(kind):
        return values.cast(pa.int64()).cast(pa.float64())
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise _wrong_type(name, kind, "numbers")
    numbers = nan_to_null(values.cast(pa.float64(), safe=False))
    beyond = pc.fill_null(pc.greater(pc.abs(numbers), FLOAT32_MAX), False)
    _require(name, values, beyond, "is outside the range of float32", "correct the value")
    return numbers


def _to_text(name: str, values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_floating(kind):
        return _integers(name, values, "string").cast(pa.string())
    if pa.types.is_decimal(kind):
        _require(name, values, not_exact(values), _NOT_WHOLE["string"], "pass strings")
        return whole_number_texts(values)
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind)):
        raise _wrong_type(name, kind, "strings or integers")
    texts = values.cast(pa.string())
    return pc.if_else(pc.equal(texts, ""), _NULL_TEXT, texts)


def _to_ints(name: str, values: pa.Array) -> pa.Array:
    _require_lists(name, values.type, pa.types.is_integer, "lists of integers")
    return values.cast(pa.list_(pa.int64()))


def _to_texts(name: str, values: pa.Array) -> pa.Array:
    _require_lists(
        name,
        values.type,
        lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
        "lists of strings",
    )
    return values.cast(pa.list_(pa.string()))


def _require(name: str, values: pa.Array, wrong: pa.Array, problem: str, remedy: str) -> None:
    """Raises DataError if an element of `wrong` is true. The message contains the first such value."""
    count = pc.sum(wrong).as_py()
    if count:
        row = pc.index(wrong, True).as_py()
        shown = repr(values[row].as_py())[:_LONGEST_SHOWN]
        more = f" ({count} values of the column are wrong)" if count > 1 else ""
        raise DataError(f"column {name}, row {row}: {shown} {problem}{more}", remedy)


def _require_lists(name: str, kind: pa.DataType, fits: Callable[[pa.DataType], bool], needed: str) -> None:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise _wrong_type(name, kind, needed)
    if not (fits(kind.value_type) or pa.types.is_null(kind.value_type)):
        raise _wrong_type(name, kind, needed)


def _wrong_type(name: str, kind: pa.DataType, needed: str) -> DataError:
    return DataError(
        f"column {name} has the type {kind}, but the workflow reads {needed}", f"convert it to {needed}"
    )


# Types of Arrow that operators receive as integers: 1 or 0, days, or µs.
_AS_INTEGERS = (pa.types.is_boolean, pa.types.is_date, pa.types.is_timestamp, pa.types.is_time)
_ARROW_TYPES: Mapping[Type, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "string": pa.string(),
    "ints": pa.list_(pa.int64()),
    "strings": pa.list_(pa.string()),
}
_CONVERT: Mapping[Type, Callable[[str, pa.Array], pa.Array]] = {
    "int": _to_int,
    "float": _to_float,
    "string": _to_text,
    "ints": _to_ints,
    "strings": _to_texts,
}
