"""Values as the texts that are hashed, counted and looked up: the same bytes in both engines."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F

# Joined texts: no field of a log holds these two bytes.
SEPARATOR, MISSING = "\x1f", "\x00"


# What has a meaning in a regular expression.
_SPECIAL = re.compile(r"([\\^$.|?*+()\[\]{}])")


def literal_pattern(text: str) -> str:
    """A regular expression for the text itself. re.escape would escape tabs and blanks too, which the accelerator refuses."""
    return _SPECIAL.sub(r"\\\1", text)


def text_column(value: Column) -> Column:
    return value.cast("string")


def text_array(values: pa.Array) -> pa.Array:
    return values if pa.types.is_string(values.type) else values.cast(pa.string())


def joined_column(values: Sequence[Column]) -> Column:
    """One text for several values; null where all are null. A single value is its own text."""
    if len(values) == 1:
        return text_column(values[0])
    parts = [F.coalesce(text_column(each), F.lit(MISSING)) for each in values]
    none = values[0].isNull()
    for each in values[1:]:
        none = none & each.isNull()
    return F.when(~none, F.concat_ws(SEPARATOR, *parts))


def joined_array(values: Sequence[pa.Array]) -> pa.Array:
    if len(values) == 1:
        return text_array(values[0])
    parts = [pc.fill_null(text_array(each), MISSING) for each in values]
    joined = pc.binary_join_element_wise(*parts, SEPARATOR)
    none = np.logical_and.reduce([each.is_null().to_numpy(zero_copy_only=False) for each in values])
    return pc.if_else(pa.array(none), pa.scalar(None, pa.string()), joined)


def over_elements(values: pa.Array, of_flat: pa.Array) -> pa.Array:
    """A list array with the shape of `values` and the elements `of_flat`."""
    lists = values.cast(pa.list_(values.type.value_type))
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    nulls = lists.is_null().to_numpy(zero_copy_only=False)
    starts = pa.array(offsets, mask=np.append(nulls, False)) if nulls.any() else pa.array(offsets)
    return pa.ListArray.from_arrays(starts, of_flat)
