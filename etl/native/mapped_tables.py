"""Opens tables with statistics by key, which all Python workers of a machine map into memory.

The file of a table has its key column as a hash table (etl/native/lookup.py); a second file has the columns.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from etl.native.lookup import Lookup
from etl.native.mapped_files import open_mapped
from storage.parquet_files import read_file

_KEY = "key"
Keyed = tuple[Lookup, pa.Table]


@lru_cache(maxsize=32)
def open_keyed(files: tuple[str, ...]) -> Keyed:
    """Returns the `Lookup` of a table's column `key`, and the table, whose columns have one chunk.

    Args:
        files: the Parquet files of the table; at least one.

    Raises:
        DataError: a file does not exist, or is damaged.
    """
    return open_mapped("keyed", [*files], lambda path: _write(path, files), _load, lambda: _read(files))


def _read(files: tuple[str, ...]) -> Keyed:
    table = pa.concat_tables(read_file(path) for path in files).combine_chunks()
    return Lookup(_keys(table)), table


def _write(path: Path, files: tuple[str, ...]) -> Keyed | None:
    lookup, table = _read(files)
    if not len(table):
        return lookup, table
    columns = Path(f"{path}.columns")
    with pa.OSFile(str(columns), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    lookup.save(path, np.zeros(len(table), np.int32))
    # The hash table becomes visible last, under the name that `_load` gets.
    columns.replace(_columns(path))
    return None


def _load(path: Path) -> Keyed:
    lookup, _ = Lookup.load(path)
    with pa.memory_map(str(_columns(path))) as source:
        return lookup, pa.ipc.open_file(source).read_all()


def _columns(path: Path) -> Path:
    """Returns the path of the file with the columns, which is the same for every attempt to write it."""
    return path.with_suffix(".columns")


def _keys(table: pa.Table) -> pa.Array:
    return table[_KEY].combine_chunks() if len(table) else pa.array([], pa.string())
