"""Values of rows on their way through a chain: plain, or distinct values with the index of each row's value.

Most raw columns repeat few values, so steps process distinct values, and features are taken by index at the
end. Lists may have dictionary-encoded elements. They are decoded only for steps that need this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.raw.value_text import over_elements


@dataclass(frozen=True)
class RowValues:
    """One value for each of n rows.

    Attributes:
        distinct: the values. Without `codes`, these are the n values themselves.
        codes: (n,) integers without null, the index of each row's value in `distinct`; None if `distinct` has
            one value for each row.
    """

    distinct: pa.Array
    codes: pa.Array | None = None

    @property
    def rows(self) -> int:
        """Returns the number of rows."""
        return len(self.distinct if self.codes is None else self.codes)

    @cached_property
    def plain(self) -> pa.Array:
        """Returns the n values as one array."""
        return self.distinct if self.codes is None else self.distinct.take(self.codes)

    @cached_property
    def encoded(self) -> pa.Array:
        """Returns the n values dictionary-encoded, if they have codes; otherwise plain."""
        if self.codes is None:
            return self.distinct
        return pa.DictionaryArray.from_arrays(self.codes, self.distinct)

    def counts(self) -> tuple[pa.Array, np.ndarray]:
        """Returns k values and how many rows have each of them, shape (k,), int64, at least 1.

        Values may occur more than once; nulls are included. Elements are counted if the values are lists;
        they are not decoded if they are dictionary-encoded.
        """
        values, codes = self.distinct, self.codes
        if is_list(values.type):
            if codes is not None:
                values, codes = self.plain, None
            values = pc.list_flatten(values)
        if isinstance(values, pa.DictionaryArray):
            values, codes = dictionary_with_null(values)
        if codes is None:
            return values, np.ones(len(values), np.int64)
        counts = np.bincount(codes.to_numpy(zero_copy_only=False), minlength=len(values))
        present = np.flatnonzero(counts)
        if len(present) < len(values):
            values, counts = values.take(pa.array(present)), counts[present]
        return values, counts


def row_values(array: pa.Array, encode: bool) -> RowValues:
    """Returns the values of a raw column. With `encode`, strings are dictionary-encoded."""
    if encode and pa.types.is_string(array.type):
        array = array.dictionary_encode()
    if isinstance(array, pa.DictionaryArray):
        return RowValues(*dictionary_with_null(array))
    return RowValues(array)


def dictionary_with_null(array: pa.DictionaryArray) -> tuple[pa.Array, pa.Array]:
    """Returns (values, codes) of a dictionary array. The codes are not null; the last value is null."""
    distinct = pa.concat_arrays([array.dictionary, pa.nulls(1, array.dictionary.type)])
    return distinct, _codes_with_null(array.indices, len(array.dictionary))


def _codes_with_null(indices: pa.Array, null: int) -> pa.Array:
    """Returns n indices below `null`, with `null` in place of nulls. NumPy needs a third of Arrow's time."""
    if not indices.null_count or indices.type != pa.int32():
        return indices.fill_null(null)
    start, end = indices.offset, indices.offset + len(indices)
    bits, values = indices.buffers()
    valid = np.unpackbits(np.frombuffer(bits, np.uint8), count=end, bitorder="little")[start:]
    codes = valid.astype(np.uint32) - np.uint32(1)  # all bits are 1 in place of null
    codes |= np.frombuffer(values, np.uint32)[start:end]
    return pa.array(np.minimum(codes, np.uint32(null), out=codes).view(np.int32))


def is_list(kind: pa.DataType) -> bool:
    """Returns whether a type is that of lists."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def decoded(array: pa.Array) -> pa.Array:
    """Returns an array without dictionaries: dictionary arrays and elements of lists become plain."""
    if isinstance(array, pa.DictionaryArray):
        return array.dictionary.take(array.indices)
    if is_list(array.type) and pa.types.is_dictionary(array.type.value_type):
        return over_elements(array, decoded(pc.list_flatten(array)))
    return array


def common_codes(values: Sequence[RowValues]) -> pa.Array | None:
    """Returns the codes that all values share; None if they have other codes, or none."""
    codes = values[0].codes
    return codes if all(value.codes is codes for value in values) else None
