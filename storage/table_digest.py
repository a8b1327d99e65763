"""A digest of the values of an Arrow table. It does not depend on chunks and offsets of the arrays."""

from __future__ import annotations

from hashlib import sha256
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


def table_digest(table: pa.Table) -> str:
    """Returns a digest of 16 hex digits of the names, types and values of all columns.

    Columns may contain numbers, texts, or lists of numbers or texts. The digest also depends on the order of
    the columns and on the types of equal values.
    """
    digest = sha256()
    for name, column in zip(table.column_names, table.columns, strict=True):
        digest.update(f"{name}\0".encode())
        whole = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        _add(digest, whole)
    return digest.hexdigest()[:16]


def _add(digest: _Hash, values: pa.Array) -> None:
    """Hashes type, length, nulls and values of an array, but no bytes that its buffer has at nulls."""
    digest.update(f"{values.type} {len(values)}\0".encode())
    digest.update(values.is_null().to_numpy(zero_copy_only=False).tobytes())
    if pa.types.is_list(values.type):
        lengths = pc.fill_null(pc.list_value_length(values), 0)
        digest.update(lengths.to_numpy(zero_copy_only=False).tobytes())
        _add(digest, values.flatten())
    elif pa.types.is_string(values.type):
        texts = pc.fill_null(values, "")
        digest.update(pc.binary_length(texts).to_numpy(zero_copy_only=False).tobytes())
        _, offsets, characters = texts.buffers()
        if characters is not None and len(texts):
            ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
            digest.update(characters[int(ends[0]) : int(ends[-1])].to_pybytes())
    else:
        digest.update(pc.fill_null(values, 0).to_numpy(zero_copy_only=False).tobytes())
