"""Reads the footers of Parquet files, also of writers whose Arrow types this version of Arrow does not have.

Writers of Arrow store the Arrow schema in the footer, beside the schema of Parquet. Newer ones, such as
delta-rs, store types in it that pyarrow 14 refuses, such as string views. The types of Parquet say enough to
read such a file.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

_MAGIC = b"PAR1"
_END_BYTES = 8  # length of the footer, magic
_ARROW_SCHEMA, _UNUSED = b"ARROW:schema", b"-----:schema"  # of one length


def parquet_metadata(source: pa.NativeFile) -> pq.FileMetaData:
    """Returns the footer of an open Parquet file. Without the Arrow schema, if Arrow cannot read it.

    Raises:
        pa.ArrowException, OSError: the footer is damaged.
    """
    try:
        return pq.read_metadata(source)
    except pa.ArrowInvalid:
        size = source.size()
        end = source.read_at(_END_BYTES, size - _END_BYTES)
        length = int.from_bytes(end[:4], "little")
        footer = source.read_at(length, max(0, size - _END_BYTES - length))
        if _ARROW_SCHEMA not in footer:
            raise
        changed = _MAGIC + footer.replace(_ARROW_SCHEMA, _UNUSED) + end
        return pq.read_metadata(pa.BufferReader(changed))
