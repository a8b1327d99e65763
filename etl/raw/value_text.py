"""Converts values to texts, which are then hashed, counted or looked up.

Both engines, `sql` and `arrow`, convert a value to the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.lazy_pyspark import F

if TYPE_CHECKING:
    from pyspark.sql import Column

# Floats below these bounds hold each integer. From there on, an integer may have been rounded. The keys are
# the names of the types in Spark and, with halffloat, in Arrow.
EXACT_BELOW = {"halffloat": 2.0**11, "float": 2.0**24, "double": 2.0**53}
WHOLE_RULE = (
    "only a whole number becomes a text, and a float only below 2⁵³ (2²⁴ for 32 bits), because larger floats "
    "may have been rounded"
)

# Separator and null in joined texts. No field of a log contains these two bytes.
SEPARATOR, MISSING = "\x1f", "\x00"

# Characters with a meaning in a regular expression.
_SPECIAL = re.compile(r"([\\^$.|?*+()\[\]{}])")


def literal_pattern(text: str) -> str:
    """Returns a regular expression that matches only this text.

    re.escape would also escape tabs and blanks, which the accelerator does not support.
    """
    return _SPECIAL.sub(r"\\\1", text)


def text_column(value: Column) -> Column:
    """Returns a Spark expression for the text of a value."""
    return value.cast("string")


def text_array(values: pa.Array) -> pa.Array:
    """Returns an array with the texts of n values, shape (n,)."""
    return values if pa.types.is_string(values.type) else values.cast(pa.string())


def nan_to_null(values: pa.Array) -> pa.Array:
    """Returns an array of floats with null instead of NaN."""
    return pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)


def not_exact(values: pa.Array) -> pa.Array:
    """Returns which floats or decimals are not certainly the integer that was meant: n booleans.

    These are fractions, infinity, and floats that may have been rounded. Nulls and NaN are not.
    """
    kind = values.type
    if pa.types.is_decimal(kind):
        return pc.fill_null(pc.not_equal(values, pc.trunc(values)), False)
    numbers = nan_to_null(values.cast(pa.float64()))
    limit = EXACT_BELOW[str(kind)]
    wrong = pc.or_(pc.not_equal(numbers, pc.trunc(numbers)), pc.greater_equal(pc.abs(numbers), limit))
    return pc.fill_null(wrong, False)


def whole_number_texts(values: pa.Array) -> pa.Array:
    """Returns the texts of whole numbers: integers, and floats or decimals of which `not_exact` is false.

    NaN becomes null.
    """
    kind = values.type
    if pa.types.is_floating(kind):
        return nan_to_null(values.cast(pa.float64())).cast(pa.int64()).cast(pa.string())
    if pa.types.is_decimal(kind):
        texts = [None if value is None else str(int(value)) for value in values.to_pylist()]
        return pa.array(texts, pa.string())
    return values.cast(pa.string())


def joined_column(values: Sequence[Column]) -> Column:
    """Returns a Spark expression that joins the values of several columns to one text.

    The text is null if all values of the row are null. The text of a single value is not changed.
    """
    if len(values) == 1:
        return text_column(values[0])
    parts = [F.coalesce(text_column(value), F.lit(MISSING)) for value in values]
    all_null = values[0].isNull()
    for value in values[1:]:
        all_null = all_null & value.isNull()
    return F.when(~all_null, F.concat_ws(SEPARATOR, *parts))


def joined_array(values: Sequence[pa.Array]) -> pa.Array:
    """Joins arrays of n values to one array of n texts, which equal those of `joined_column`."""
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
