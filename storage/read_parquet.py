"""Reads Parquet files of published partitions with Arrow, on any file system."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from conf.errors import DataError, InfrastructureError
from storage import file_io
from storage.file_digests import is_compared, map_in_threads, open_file, require_intact
from storage.manifest import Manifest, data_files
from storage.paths import Partition

REBUILD = "run the job that writes this table again"
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
    """Returns the rows of a file, with some or all columns.

    In the result's schema, every column may have nulls.

    Raises:
        DataError: the file does not exist, or is damaged.
        InfrastructureError: the file could not be read.
    """
    with errors_of_file(path, REBUILD), open_file(path) as source:
        return _plain(pq.ParquetFile(source).read(columns=None if columns is None else list(columns)))


def concat_parts(parts: Iterable[pa.Table]) -> pa.Table:
    """Returns the rows of all parts of a table. The parts have the same columns, of the same types.

    Spark marks columns that cannot be null in the schema, and Arrow does not. Both also write metadata of
    their own. `pa.concat_tables` would refuse parts with different marks or metadata; this function accepts
    them.
    """
    return pa.concat_tables([_plain(part) for part in parts])


def _plain(table: pa.Table) -> pa.Table:
    """Returns a table with nullable columns and list elements, and with a schema without metadata."""
    schema = pa.schema([(field.name, _nullable(field.type)) for field in table.schema])
    return table if table.schema.equals(schema, check_metadata=True) else table.cast(schema)


def _nullable(kind: pa.DataType) -> pa.DataType:
    return pa.list_(_nullable(kind.value_type)) if pa.types.is_list(kind) else kind


@contextmanager
def errors_of_file(path: str, remedy: str) -> Iterator[None]:
    """Converts errors of reading a Parquet file to errors whose messages contain the path of the file.

    Args:
        path: the file.
        remedy: what to do if the file does not exist or is damaged.

    Raises:
        DataError: the file does not exist, or is damaged.
        InfrastructureError: the file could not be read.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist although a manifest names it", remedy) from error
    except pa.ArrowInvalid as error:
        raise DataError(f"{path} is not a complete Parquet file: {error}", remedy) from error
    except OSError as error:
        raise InfrastructureError(
            f"{path} could not be read: {error}", "check the storage, then run the job again"
        ) from error


def require_all_intact(paths: Iterable[str]) -> None:
    """Compares files with their manifests in threads. Skips files that this process has compared before.

    Call this function before another program, such as DuckDB, reads the files. Such a program cannot compare
    them with a manifest.

    Raises:
        DataError: a file does not exist or is damaged.
        InfrastructureError: a file could not be read.
    """
    unread = [path for path in dict.fromkeys(paths) if not is_compared(path)]
    map_in_threads(require_intact_file, unread)


def require_intact_file(path: str) -> str:
    """Compares a file with its manifest, unless this process has done so. Returns the path.

    Raises the same errors as `require_all_intact`.
    """
    with errors_of_file(path, REBUILD):
        require_intact(path)
    return path


# If the files of a look-up have at most this total size, all of them are compared with their manifest.
_COMPARED_BYTES = 2**30


def read_where(paths: Sequence[str], columns: Sequence[str], condition: pc.Expression) -> pa.Table:
    """Returns some columns of the rows that meet a condition, from one or more files.

    A row group is skipped if its statistics show that it has no such row. If the files have more than 1 GiB,
    comparing all of them with their manifest would take longer than the look-up. So only files with a row
    group that is not skipped are compared. In this case, the function can miss a row if the statistics of its
    row group are damaged.

    Raises:
        DataError: a file does not exist or is damaged.
        InfrastructureError: a file could not be read.
    """
    import pyarrow.dataset as ds  # the import takes 0.3 s, because it imports pandas

    tables = []
    sizes = file_io.sizes(paths)
    if sum(size or 0 for size in sizes) <= _COMPARED_BYTES:
        require_all_intact(paths)
    for path in paths:
        files, inner = file_io.filesystem(path)
        with errors_of_file(path, REBUILD):
            fragment = ds.ParquetFileFormat().make_fragment(inner, files)
            kept = [group.id for group in fragment.subset(condition).row_groups]
            if kept:
                require_intact(path)
            table = fragment.subset(row_group_ids=kept).to_table(columns=list(columns), filter=condition)
        tables.append(table.select(list(columns)))
    return concat_parts(tables)


def read_rows_of_keys(
    partition: Partition, manifest: Manifest, key: str, keys: Sequence[str], columns: Sequence[str]
) -> pa.Table:
    """Returns some columns of the rows that have one of the values `keys` in the column `key`.

    The rows are in the order of `keys`. Keys without a row are left out. A row group is skipped if its
    statistics show that it has no such row.

    Args:
        partition, manifest: the partition, and the manifest that lists its files.
        key: a column of strings, whose values are unique.
        keys: the values of `key` in the requested rows, without duplicates.
        columns: the columns to read. `key` is one of them.

    Raises:
        DataError: a file does not exist or is damaged.
        InfrastructureError: a file could not be read.
    """
    wanted = pa.array(keys, pa.string())
    files = data_files(partition, manifest)
    if not files:
        return read_table(partition, manifest, columns=columns)
    rows = read_where(files, columns, pc.field(key).isin(wanted))
    places = pc.index_in(wanted, rows.column(key).combine_chunks())
    return rows.take(places.drop_null())


def read_table(
    partition: Partition, manifest: Manifest, split: str | None = None, columns: Sequence[str] | None = None
) -> pa.Table:
    """Returns the rows of a manifest's files, or the rows of one split, with some or all columns.

    The rows are the same even if the partition was replaced in the meantime.

    Raises:
        DataError: a file does not exist or is damaged, the manifest lacks a column, or a column has a type
            that this release does not support.
        InfrastructureError: a file could not be read.
    """
    schema = known_schema(partition, manifest, columns)
    files = data_files(partition, manifest, split)
    tables = [read_file(path, schema.names).select(schema.names).cast(schema) for path in files]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def known_schema(partition: Partition, manifest: Manifest, columns: Sequence[str] | None = None) -> pa.Schema:
    """Returns the Arrow types of some or all columns of a manifest.

    Raises:
        DataError: the manifest lacks a column, or a column has a type that this release does not support.
    """
    names = [name for name, _ in manifest.schema] if columns is None else list(columns)
    kinds = dict(manifest.schema)
    types = {name: arrow_type(kinds.get(name, "")) for name in names}
    unknown = [(name, kinds.get(name)) for name, kind in types.items() if kind is None]
    if unknown:
        raise DataError(
            f"the manifest of {partition.path} lacks these columns, or gives them types that this release "
            f"does not know: {unknown}",
            REBUILD,
        )
    return pa.schema(list(types.items()))


def arrow_type(kind: str) -> pa.DataType | None:
    """Returns the Arrow type for a type in a manifest; None if this release does not support it."""
    if not kind.startswith(_LISTS):
        return _TYPES.get(kind)
    element = _TYPES.get(kind.removeprefix(_LISTS).removesuffix(">"))
    return None if element is None else pa.list_(element)
