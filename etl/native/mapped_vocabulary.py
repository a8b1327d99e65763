"""Opens vocabularies, which all Python workers of a machine map into memory (etl/native/mapped_files.py)."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from etl.native.lookup import Lookup
from etl.native.mapped_files import open_mapped
from storage import file_io
from storage.parquet_files import errors_of_file

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
        lambda path: _write(path, files, name, oldest),
        Lookup.load,
        lambda: _read(files, name, oldest),
    )


def _write(path: Path, files: tuple[str, ...], name: str, oldest: int) -> Vocabulary | None:
    lookup, ids = _read(files, name, oldest)
    if not len(ids):
        return lookup, ids
    lookup.save(path, ids)
    return None


def _read(files: tuple[str, ...], name: str, oldest: int) -> Vocabulary:
    values, ids = [pa.array([], pa.string())], [np.zeros(0, np.int32)]
    for path, groups in _row_groups(files).get(name, {}).items():
        filesystem, inner = file_io.filesystem(path)
        with errors_of_file(path, _REPAIR), filesystem.open_input_file(inner) as source:
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
        filesystem, inner = file_io.filesystem(path)
        with errors_of_file(path, _REPAIR), filesystem.open_input_file(inner) as source:
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
