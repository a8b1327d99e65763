"""Reads published Parquet files for the report, on one machine. Of large tables, only some files are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from storage import file_io
from storage.manifest import Manifest, data_files
from storage.paths import Partition

MOST_ROWS = 5_000_000  # of one column; reading them takes seconds, and a report needs no more


def even_files(partition: Partition, manifest: Manifest, split: str | None = None) -> list[str]:
    """Returns every n-th file of a partition, or of one split of the partition.

    n is chosen so that the files have at most about MOST_ROWS rows together.
    """
    rows = sum(file.rows for file in manifest.split_files(split))
    return data_files(partition, manifest, split)[:: max(1, -(-rows // MOST_ROWS))]


def column(path: str, name: str) -> pa.ChunkedArray:
    """Reads one column of one file."""
    source, inner = file_io.filesystem(path)
    return pq.read_table(inner, columns=[name], filesystem=source).column(name)


def rows_where(files: Sequence[str], columns: list[str], condition: pc.Expression) -> list[dict[str, Any]]:
    """Reads the rows that meet a condition.

    A row group is skipped if its statistics show that it contains no such row.
    """
    if not files:
        return []
    source = file_io.filesystem(files[0])[0]
    inner = [file_io.filesystem(path)[1] for path in files]
    table = ds.dataset(inner, format="parquet", filesystem=source).to_table(columns=columns, filter=condition)
    return list(table.to_pylist())
