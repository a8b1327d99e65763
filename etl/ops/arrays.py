"""Conversions that operators share: from doubles to features, and from columns to codes, numbers or groups.

The code of a value is its index in an array of distinct values. Operators that combine rows with equal keys
use codes to group the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from conf.lazy_imports import F
from storage.feature_spec import FLOAT32_MAX

if TYPE_CHECKING:
    from pyspark.sql import Column


def bounded_column(value: Column) -> Column:
    """Clips doubles to the range of float32, so that no feature is infinite; null stays null."""
    limit = F.lit(FLOAT32_MAX)
    return F.when(value > limit, limit).when(value < -limit, -limit).otherwise(value)


def bounded_array(numbers: Any) -> Any:
    """Clips float64 numbers to the range of float32."""
    return np.clip(numbers, -FLOAT32_MAX, FLOAT32_MAX)


def as_doubles(values: pa.Array) -> Any:
    """Returns n values as (n,) float64, with NaN for null, and an (n,) bool array that is true for nulls."""
    nulls = values.is_null().to_numpy(zero_copy_only=False)
    return values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), nulls


def from_doubles(values: Any, nulls: Any) -> pa.Array:
    """Returns the NumPy array `values` as a float64 Arrow array, with null where `nulls` is true."""
    return pa.array(values, pa.float64(), mask=nulls)


# The functions below convert columns of Arrow tables to codes and numbers. Operators that combine the rows
# with equal keys use them.

# `groups_of` combines the codes of several columns into one int64. If more than _LARGEST combinations are
# possible, `groups_of` first replaces the combinations that occur by consecutive numbers.
_LARGEST = 2**62


def encoded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """Returns n values as one array with a dictionary. A null has no entry in the dictionary."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    chunks = column.unify_dictionaries().chunks
    if len(chunks) == 1:
        return chunks[0]
    if not chunks:
        return pa.array([], column.type)
    indices = pa.concat_arrays([chunk.indices for chunk in chunks])
    return pa.DictionaryArray.from_arrays(indices, chunks[0].dictionary)


def codes_of(column: pa.ChunkedArray) -> tuple[np.ndarray, pa.Array]:
    """Returns the values of a column as indices into the distinct values.

    Args:
        column: n values, with or without a dictionary.

    Returns:
        codes: (n,) int64, the index of each value in `distinct`; the length of `distinct` for a null.
        distinct: the distinct values. Some of them may not occur in the column.
    """
    coded = encoded(column)
    indices = coded.indices.cast(pa.int64())
    if indices.null_count:
        indices = indices.fill_null(len(coded.dictionary))
    return indices.to_numpy(), coded.dictionary


def groups_of(rows: pa.Table, names: Sequence[str]) -> tuple[np.ndarray, int]:
    """Divides n rows into groups with equal values in some columns. Nulls are equal to each other.

    Returns:
        groups: (n,) int64, the group of each row, from 0.
        size: the number of groups.
    """
    groups, size = np.zeros(len(rows), np.int64), 1
    for name in names:
        codes, distinct = codes_of(rows.column(name))
        values = len(distinct) + 1  # null is treated as one more value
        if size > _LARGEST // values:
            kept, groups = np.unique(groups, return_inverse=True)
            size = len(kept)
        groups, size = groups * values + codes, size * values
    return dense_codes(groups, size)


def dense_codes(codes: np.ndarray, size: int) -> tuple[np.ndarray, int]:
    """Replaces the distinct codes by consecutive numbers from 0, in the same order.

    Args:
        codes: (n,) int64, each below `size`.
        size: all codes are below this number.

    Returns:
        dense: (n,) int64
        count: the number of distinct codes.
    """
    if size > 4 * len(codes) + 1024:
        kept, dense = np.unique(codes, return_inverse=True)
        return dense, len(kept)
    occurs = np.zeros(size, bool)
    occurs[codes] = True
    return (np.cumsum(occurs) - 1)[codes], int(np.count_nonzero(occurs))


def plain(column: pa.ChunkedArray) -> pa.Array:
    """Returns the values of a column as one array without a dictionary."""
    if pa.types.is_dictionary(column.type):
        coded = encoded(column)
        return coded.dictionary.take(coded.indices)
    return whole(column)


def whole(column: pa.ChunkedArray) -> pa.Array:
    """Returns the values of a column as one array, with a dictionary if the column has one."""
    if pa.types.is_dictionary(column.type):
        return encoded(column)
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def numbers_of(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Returns n numbers as (n,) float64, with NaN for null, and an (n,) bool array that is true for nulls."""
    return as_doubles(plain(column))


def integers_of(column: pa.ChunkedArray) -> np.ndarray:
    """Returns n integers without nulls as (n,) int64."""
    return plain(column).cast(pa.int64()).to_numpy(zero_copy_only=False)


def with_column(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    """Returns the rows with a new column at the end, or with new values in the existing column `name`."""
    if name in rows.column_names:
        return rows.set_column(rows.column_names.index(name), name, values)
    return rows.append_column(name, values)
