"""Rows of published Parquet files that are not in memory.

Queries of DuckDB and functions over batches read the files piece by piece. So the memory of a stage depends
on the results that it keeps, and not on the number of rows that it reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.parquet as pq

from storage import file_io
from storage.manifest import Manifest, data_files
from storage.parquet_files import REBUILD, errors_of_file, known_schema
from storage.paths import Partition

# Rows that `StoredRows.read` reads at a time.
_ROWS_OF_TABLE = 1 << 17
_GLOB = re.compile(r"([*?\[])")


@dataclass(frozen=True)
class StoredFiles:
    """Some files of one partition.

    Attributes:
        paths: the paths of the files.
        values: maps the name of each column that has the same text in all rows to this text. These columns
            are not in the files.
    """

    paths: tuple[str, ...]
    values: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class StoredRows:
    """Rows of published files that are read when they are needed.

    Attributes:
        schema: the columns of the rows.
        files: the files, in the order of their rows.
    """

    schema: pa.Schema
    files: tuple[StoredFiles, ...] = field(default=())

    @classmethod
    def of(
        cls,
        partition: Partition,
        manifest: Manifest,
        split: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> StoredRows:
        """Returns the rows of the files that a manifest names, or those of one split.

        Raises:
            DataError: the manifest has no such column, or a type that this release does not know.
        """
        schema = known_schema(partition, manifest, columns)
        return cls(schema, (StoredFiles(tuple(data_files(partition, manifest, split))),))

    @property
    def column_names(self) -> list[str]:
        """Returns the names of the columns."""
        return list(self.schema.names)

    @property
    def columns(self) -> list[str]:
        """Returns the names of the columns, as a frame of Spark does."""
        return self.column_names

    def select(self, names: Sequence[str]) -> StoredRows:
        """Returns the rows with only some columns, in this order."""
        return replace(self, schema=pa.schema([self.schema.field(name) for name in names]))

    def with_value(self, name: str, value: str) -> StoredRows:
        """Returns the rows with one more column, which has the same text in all rows."""
        files = tuple(replace(some, values=(*some.values, (name, value))) for some in self.files)
        return StoredRows(self.schema.append(pa.field(name, pa.string())), files)

    def batches(self, most_rows: int) -> Iterator[pa.RecordBatch]:
        """Yields the rows in order, as batches of at most `most_rows` rows of one file.

        Raises:
            DataError: a file does not exist or is damaged.
            InfrastructureError: a file could not be read.
        """
        for some in self.files:
            values = dict(some.values)
            names = [name for name in self.schema.names if name not in values]
            for path in some.paths:
                filesystem, inner = file_io.filesystem(path)
                with errors_of_file(path, REBUILD), filesystem.open_input_file(inner) as source:
                    file = pq.ParquetFile(source, pre_buffer=False)
                    for batch in file.iter_batches(most_rows, columns=names, use_threads=False):
                        yield self._complete(pa.Table.from_batches([batch]), values)

    def _complete(self, rows: pa.Table, values: dict[str, str]) -> pa.RecordBatch:
        """Returns rows of a file with all columns, in the order and with the types of the schema."""
        for name, value in values.items():
            rows = rows.append_column(name, pa.repeat(pa.scalar(value, pa.string()), len(rows)))
        columns = [rows.column(field.name).combine_chunks().cast(field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def read(self) -> pa.Table:
        """Returns the rows as a table. The errors are those of `batches`."""
        return pa.Table.from_batches(self.batches(_ROWS_OF_TABLE), self.schema)

    @property
    def is_local(self) -> bool:
        """Returns whether all files are in the file system of this machine, so that `sql` can read them."""
        return all(file_io.is_local(path) for some in self.files for path in some.paths)

    def sql(self) -> str:
        """Returns a table of DuckDB's SQL that reads the rows. `is_local` must be true.

        The text may have braces, so it is inserted after other names were replaced in a query.
        """
        selects = [self._select(some) for some in self.files if some.paths]
        if not selects:
            nulls = ", ".join(f"NULL AS {_identifier(name)}" for name in self.schema.names)
            return f"(SELECT {nulls} WHERE false)"
        return f"({' UNION ALL '.join(selects)})"

    def _select(self, some: StoredFiles) -> str:
        values = dict(some.values)
        columns = ", ".join(
            f"{_text(values[name])} AS {_identifier(name)}" if name in values else _identifier(name)
            for name in self.schema.names
        )
        # In a pattern of DuckDB, brackets around a character stand for this character.
        local = (file_io.filesystem(path)[1] for path in some.paths)
        paths = ", ".join(_text(_GLOB.sub(r"[\1]", path)) for path in local)
        return f"SELECT {columns} FROM read_parquet([{paths}], hive_partitioning = false)"

    def require_readable(self) -> None:
        """Reads all files.

        Raises:
            DataError: a file does not exist or is damaged.
            InfrastructureError: a file could not be read.
        """
        for _ in self.batches(_ROWS_OF_TABLE):
            pass


def union_stored(parts: Sequence[StoredRows]) -> StoredRows:
    """Returns the rows of all parts, which have the same columns in any order. There is at least one part."""
    schema = parts[0].schema
    for part in parts[1:]:
        if part.select(schema.names).schema != schema or len(part.schema) != len(schema):
            raise ValueError(
                f"internal error, please report: parts have the columns {part.schema} and {schema}"
            )
    return StoredRows(schema, tuple(some for part in parts for some in part.files))


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
