"""The vocabularies of a workflow in a worker: each a file on local disk that the workers of a machine map and share.

A vocabulary of Criteo's size takes gigabytes as a hash table; a copy in every worker would not fit. The first worker that needs one
makes the file, in Spark's local directory, which goes with the application. Where there is none (one raw row without
Spark), or no room, the table is in memory.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from etl.native.library import is_built
from etl.native.lookup import Lookup
from storage import file_io
from storage.manifest import digest_of

Vocabulary = tuple[Lookup, np.ndarray]


@lru_cache(maxsize=512)
def open_vocabulary(files: tuple[str, ...], name: str, oldest: int) -> Vocabulary:
    """(lookup of the values of one vocabulary, their (n,) int32 ids) out of the Parquet files of a workflow's.

    Args:
        oldest: values last seen before this day, in days since 1970-01-01, are left out.
    """
    folders = os.environ.get("SPARK_LOCAL_DIRS")
    if not folders or not is_built():
        return _read(files, name, oldest)
    path = Path(folders.split(",")[0]) / f"nightrank-vocabulary-{digest_of([*files, name, oldest])}"
    try:
        if not path.exists():
            lookup, ids = _read(files, name, oldest)
            if not len(ids):
                return lookup, ids
            written = path.with_suffix(f".{os.getpid()}")
            lookup.save(written, ids)
            written.replace(path)
        return Lookup.load(path)
    except OSError:  # no room, or no such folder
        return _read(files, name, oldest)


def _read(files: tuple[str, ...], name: str, oldest: int) -> Vocabulary:
    values, ids = [pa.array([], pa.string())], [np.zeros(0, np.int32)]
    for path, groups in _groups(files).get(name, {}).items():
        found, inner = file_io.filesystem(path)
        with found.open_input_file(inner) as source:
            entries = pq.ParquetFile(source).read_row_groups(groups, use_threads=False)
        kept = pc.and_(pc.equal(entries["column"], name), pc.greater_equal(entries["last_seen"], oldest))
        entries = entries.filter(kept)
        values += entries["value"].chunks
        ids.append(entries["id"].to_numpy().astype(np.int32))
    return Lookup(pa.concat_arrays(values)), np.concatenate(ids)


@lru_cache(maxsize=8)
def _groups(files: tuple[str, ...]) -> dict[str, dict[str, list[int]]]:
    """Vocabulary → file → row groups that may hold entries of it. A row group holds few vocabularies: they are read once each."""
    found: dict[str, dict[str, list[int]]] = {}
    for path in files:
        files_of, inner = file_io.filesystem(path)
        with files_of.open_input_file(inner) as source:
            parquet = pq.ParquetFile(source)
            for group in range(parquet.metadata.num_row_groups):
                names = parquet.metadata.row_group(group).column(0).statistics
                if names is not None and names.min == names.max:
                    every = [names.min]
                else:
                    column = parquet.read_row_group(group, columns=["column"], use_threads=False)
                    every = pc.unique(column["column"]).to_pylist()
                for name in every:
                    found.setdefault(name, {}).setdefault(path, []).append(group)
    return found
