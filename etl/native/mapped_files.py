"""Files on the local disk that one Python worker writes and all workers of a machine map into memory.

A table may need gigabytes, so the machine's memory is too small for a copy in every worker. The first worker
that needs a table writes it to Spark's local directory, while the other workers wait. Spark, or the process
that started the workers, deletes the directory at the end of the job. If the directory does not exist or is
full, each worker keeps the table in its own memory.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from etl.native.distinct_values import Lookup, SealedFile, map_sealed
from etl.native.library import is_built
from storage.file_digests import open_file
from storage.manifest import digest_of
from storage.read_parquet import errors_of_file, read_file

log = logging.getLogger("nightrank.etl")
Opened = TypeVar("Opened")


def open_mapped(
    kind: str,
    identity: list[object],
    write: Callable[[Path], Opened | None],
    load: Callable[[Path], Opened],
    read: Callable[[], Opened],
) -> Opened:
    """Returns a table that is mapped from a file of this machine.

    Args:
        kind: the kind of table, a word that becomes part of the file's name.
        identity: JSON values that identify the content of the file.
        write: function that writes the file to a path. If the table is too small for a file, it returns the
            table instead.
        load: function that maps a file that `write` wrote. It raises OSError or ValueError if the file is
            damaged. The file is then written once more.
        read: function that returns the table in the memory of this process. It is called if the table cannot
            be mapped.
    """
    folders = os.environ.get("SPARK_LOCAL_DIRS")
    if not folders or not is_built():
        return read()
    path = Path(folders.split(",")[0]) / f"nightrank-{kind}-{digest_of(identity)}"
    try:
        opened = _intact(path, load)
        if opened is not None:
            return opened
        # The operating system releases the lock when its process ends, so a killed worker does not block
        # others.
        with path.with_name(f".{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            opened = _intact(path, load)  # another worker may have written the file in the meantime
            if opened is not None:
                return opened
            written = path.with_suffix(f".{os.getpid()}")
            small = write(written)
            if small is not None:
                return small
            written.replace(path)
        return load(path)
    except (OSError, ValueError) as error:
        # Either the directory is full or missing, or the disk did not return the bytes that were written.
        log.warning(
            "the shared file %s cannot be used, so each worker reads the table itself: %s", path, error
        )
        return read()


def _intact(path: Path, load: Callable[[Path], Opened]) -> Opened | None:
    """Returns the mapped table; None if the file does not exist or is damaged."""
    if not path.exists():
        return None
    try:
        return load(path)
    except (OSError, ValueError) as error:
        log.warning("the shared file %s is damaged and is written again: %s", path, error)
        return None


# The functions below open tables with statistics by key. All Python workers of a machine map these tables
# into memory.
#
# The file of a table contains its key column as a hash table (etl/native/distinct_values.py). A second file
# contains the whole table.

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
    return open_mapped(
        "keyed", [*files], lambda path: _write_keyed(path, files), _load_keyed, lambda: _read_keyed(files)
    )


def _read_keyed(files: tuple[str, ...]) -> Keyed:
    table = pa.concat_tables(read_file(path) for path in files).combine_chunks()
    return Lookup(_keys(table)), table


def _write_keyed(path: Path, files: tuple[str, ...]) -> Keyed | None:
    lookup, table = _read_keyed(files)
    if not len(table):
        return lookup, table
    columns = Path(f"{path}.columns")
    with SealedFile(columns) as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    lookup.save(path, np.zeros(len(table), np.int32))
    # `open_mapped` renames the file with the hash table to its final name only after this function has
    # returned. So if that file exists, the file with the table exists too.
    columns.replace(_columns(path))
    return None


def _load_keyed(path: Path) -> Keyed:
    lookup, _ = Lookup.load(path)
    return lookup, pa.ipc.open_file(map_sealed(_columns(path))).read_all()


def _columns(path: Path) -> Path:
    """Returns the path of the file with the whole table, which is the same for all attempts to write it."""
    return path.with_suffix(".columns")


def _keys(table: pa.Table) -> pa.Array:
    return table[_KEY].combine_chunks() if len(table) else pa.array([], pa.string())


# The functions below open vocabularies, which all Python workers of a machine map into memory.

_REPAIR = "restore the file, or fit a new workflow (build_features with --set workflow.mode=fit)"
Vocabulary = tuple[Lookup, np.ndarray]


@lru_cache(maxsize=512)
def open_vocabulary(files: tuple[str, ...], name: str, oldest: int) -> Vocabulary:
    """Returns the `Lookup` of a vocabulary's n values, and an (n,) int32 array with the ids of these values.

    Args:
        files: Parquet files of all vocabularies of a workflow.
        name: name of the vocabulary.
        oldest: a day, in days since 1970-01-01. Values that were last seen before this day are omitted.

    Raises:
        DataError: a file does not exist, or is damaged.
        InfrastructureError: a file could not be read.
    """
    return open_mapped(
        "vocabulary",
        [*files, name, oldest],
        lambda path: _write_vocabulary(path, files, name, oldest),
        Lookup.load,
        lambda: _read_vocabulary(files, name, oldest),
    )


def _write_vocabulary(path: Path, files: tuple[str, ...], name: str, oldest: int) -> Vocabulary | None:
    lookup, ids = _read_vocabulary(files, name, oldest)
    if not len(ids):
        return lookup, ids
    lookup.save(path, ids)
    return None


def _read_vocabulary(files: tuple[str, ...], name: str, oldest: int) -> Vocabulary:
    values, ids = [pa.array([], pa.string())], [np.zeros(0, np.int32)]
    for path, groups in _row_groups(files).get(name, {}).items():
        with errors_of_file(path, _REPAIR), open_file(path) as source:
            entries = pq.ParquetFile(source).read_row_groups(groups, use_threads=False)
        kept = pc.and_(pc.equal(entries["column"], name), pc.greater_equal(entries["last_seen"], oldest))
        entries = entries.filter(kept)
        values += entries["value"].chunks
        ids.append(entries["id"].to_numpy().astype(np.int32))
    return Lookup(pa.concat_arrays(values)), np.concatenate(ids)


@lru_cache(maxsize=8)
def _row_groups(files: tuple[str, ...]) -> dict[str, dict[str, list[int]]]:
    """Returns, for each vocabulary and file, the indices of the row groups with entries of this vocabulary.

    A row group has entries of few vocabularies, so each row group is read only a few times.
    """
    groups_of: dict[str, dict[str, list[int]]] = {}
    for path in files:
        with errors_of_file(path, _REPAIR), open_file(path) as source:
            parquet = pq.ParquetFile(source)
            for group in range(parquet.metadata.num_row_groups):
                statistics = parquet.metadata.row_group(group).column(0).statistics
                if statistics is not None and statistics.min == statistics.max:
                    names = [statistics.min]
                else:
                    column = parquet.read_row_group(group, columns=["column"], use_threads=False)
                    names = pc.unique(column["column"]).to_pylist()
                for name in names:
                    groups_of.setdefault(name, {}).setdefault(path, []).append(group)
    return groups_of
