"""Reads Parquet files of published partitions with Arrow, on any file system."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from storage import file_io


def read_file(path: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Returns the rows of a file, with some columns or all of them."""
    files, inner = file_io.filesystem(path)
    with files.open_input_file(inner) as source:
        return pq.ParquetFile(source).read(columns=None if columns is None else list(columns))
