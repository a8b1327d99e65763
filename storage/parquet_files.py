"""Reads Parquet files of published partitions with Arrow, on any file system."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from conf.errors import DataError, InfrastructureError
from storage import file_io
from storage.manifest import Manifest, data_files
from storage.paths import Partition

_REBUILD = "run the job that writes this table again"
_LISTS = "list<element: "
_TYPES = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
}


def read_file(path: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Returns the rows of a file, with some columns or all of them.

    Raises:
        DataError: the file does not exist, or is damaged.
        InfrastructureError: the file could not be read.
    """
    files, inner = file_io.filesystem(path)
    try:
        with files.open_input_file(inner) as source:
            return pq.ParquetFile(source).read(columns=None if columns is None else list(columns))
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist although a manifest names it", _REBUILD) from error
    except pa.ArrowInvalid as error:
        raise DataError(f"{path} is not a complete Parquet file: {error}", _REBUILD) from error
    except OSError as error:
        raise InfrastructureError(
            f"{path} could not be read: {error}", "check the storage, then run the job again"
        ) from error


def read_table(
    partition: Partition, manifest: Manifest, split: str | None = None, columns: Sequence[str] | None = None
) -> pa.Table:
    """Returns the rows of the files that a manifest names, or those of one split, with some or all columns.

    The rows are the same even if the partition was replaced in the meantime.
    """
    names = [name for name, _ in manifest.schema] if columns is None else list(columns)
    kinds = dict(manifest.schema)
    schema = pa.schema([(name, _type_of(kinds[name])) for name in names])
    files = data_files(partition, manifest, split)
    tables = [read_file(path, names).select(names).cast(schema) for path in files]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _type_of(kind: str) -> pa.DataType:
    """Returns the Arrow type that a manifest names."""
    if kind.startswith(_LISTS):
        return pa.list_(_TYPES[kind.removeprefix(_LISTS).removesuffix(">")])
    return _TYPES[kind]
