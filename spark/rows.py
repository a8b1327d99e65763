"""Operations on rows, which are an Arrow table in this process or a frame of Spark.

On one machine, Spark is not needed, and it would take longer to plan a query and to start its tasks than to
do the work. So the steps of scoring and evaluation accept rows of both kinds. Each step is written once, as
an SQL query that both Spark and DuckDB run, or as a function over batches of rows.

Rows of large tables are not read into the memory of this process at once. They are `StoredRows`, whose files
`query` and `map_rows_in_threads` read in batches.
"""

from __future__ import annotations

import os
import re
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from conf.lazy_imports import F, T
from spark.tasks import map_batches
from storage import file_io
from storage.file_digests import open_file
from storage.manifest import Manifest, data_files
from storage.paths import Partition
from storage.private_folder import ScratchFolder
from storage.publish import rows_of
from storage.read_parquet import (
    REBUILD,
    concat_parts,
    errors_of_file,
    known_schema,
    read_table,
    require_all_intact,
)
from storage.run_context import RunContext

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import DataFrame, SparkSession

Rows: TypeAlias = "pa.Table | DataFrame"

# Rows in memory, rows of a frame, or rows in files that are read in batches.
ReadableRows: TypeAlias = "pa.Table | StoredRows | DataFrame"
Batches = Iterable[pa.RecordBatch]

# Number of rows that a function gets in one batch of a table. Spark's default is the same.
_BATCH_ROWS = 10_000
_SEED = 42  # the seed of Spark's xxhash64


def read_rows(
    context: RunContext,
    partition: Partition,
    manifest: Manifest,
    split: str | None = None,
    columns: Sequence[str] | None = None,
) -> Rows:
    """Reads the rows of the files that a manifest lists, or the rows of one split.

    Returns an Arrow table if the job keeps its rows in this process (RunContext.in_process), otherwise a
    frame.
    """
    if context.in_process:
        return read_table(partition, manifest, split, columns)
    return rows_of(context.spark, partition, manifest, split, columns)


def read_in_pieces(
    context: RunContext,
    partition: Partition,
    manifest: Manifest,
    split: str | None = None,
    columns: Sequence[str] | None = None,
) -> ReadableRows:
    """Returns a large table's rows as `read_rows` does, but leaves them in the files until they are used."""
    if context.in_process:
        return StoredRows.of(partition, manifest, split, columns)
    return rows_of(context.spark, partition, manifest, split, columns)


def whole(rows: ReadableRows) -> Rows:
    """Reads `StoredRows` into a table in memory. A table or a frame is returned unchanged."""
    return rows.read() if isinstance(rows, StoredRows) else rows


def query(text: str, **tables: ReadableRows) -> Rows:
    """Runs one query, and returns its rows: a lazy frame if one of `tables` is a frame, otherwise a table.

    Args:
        text: SQL, with the names of tables in braces, such as `SELECT user_key FROM {clicks}`. If the
            configuration chooses the name of a column, insert the result of `quoted`. Use only functions that
            both engines have (this module adds some to DuckDB as macros). Sums of integers must be smaller
            than 2⁶³. A hint for Spark (`/*+ BROADCAST(name) */`) is a comment for DuckDB.
        tables: maps each name in braces to the rows.
    """
    frames = [rows for rows in tables.values() if not isinstance(rows, pa.Table | StoredRows)]
    if not frames:
        return run_query(text, tables)
    session = frames[0].sparkSession
    of_session = {name: frame_of(session, whole(rows)) for name, rows in tables.items()}
    return _query_frames(session, text, of_session)


def quoted(name: str) -> str:
    """Returns the name of a column in quotes for the text of a query. The name may contain any characters."""
    return "`" + name.replace("`", "``").replace("{", "{{").replace("}", "}}") + "`"


def _query_frames(session: SparkSession, text: str, frames: Mapping[str, DataFrame]) -> DataFrame:
    """Runs a query in Spark; `query` calls this function.

    The frames are temporary views while Spark plans the query. `session.sql(text, **frames)` and
    `spark.catalog.dropTempView` would remove the frames from the cache.
    """
    catalog = session._jsparkSession.sessionState().catalog()
    views = {name: f"rows_{uuid.uuid4().hex}" for name in frames}
    try:
        for name, frame in frames.items():
            frame.createTempView(views[name])
        return session.sql(text.format_map(views))
    finally:
        for view in views.values():
            catalog.dropTempView(view)


def map_rows(rows: Rows, function: Callable[[Batches], Batches], schema: pa.Schema) -> Rows:
    """Applies a function to batches of rows. Returns all rows of the batches that the function yields.

    If `rows` is a frame, each Spark task calls the function once. If `rows` is a table, this process calls it
    once.

    Args:
        rows: the rows.
        function: gets an iterator over batches, and yields batches with the columns of `schema`.
        schema: the columns of the result.
    """
    if not isinstance(rows, pa.Table):
        return map_batches(rows, function, spark_types(schema))
    return _table_of(function(iter(_batches(rows, _BATCH_ROWS))), schema)


def map_rows_in_threads(
    rows: ReadableRows,
    function: Callable[[Batches], Batches],
    schema: pa.Schema,
    imports: Sequence[str],
    threads: int,
    batch_rows: int,
) -> Rows:
    """Does the same as `map_rows`, but calls the function in several threads if the rows are not a frame.

    Args:
        rows, function, schema: as for `map_rows`. Rows of files are read while threads work on earlier rows.
        imports: modules that Spark's workers import before they are forked.
        threads: number of threads. Each call of the function gets one batch of rows. If there is only one
            thread, the function is called once, with all batches, by the caller's thread.
        batch_rows: number of rows of these batches. This number does not depend on the number of threads,
            because rounding may depend on which rows are computed together.
    """
    if isinstance(rows, StoredRows):
        return _table_of(_map_in_threads(rows.batches(batch_rows), function, threads), schema)
    if isinstance(rows, pa.Table):
        return _table_of(_map_in_threads(_batches(rows, batch_rows), function, threads), schema)
    return map_batches(rows, function, spark_types(schema), imports)


def _map_in_threads(
    batches: Batches, function: Callable[[Batches], Batches], threads: int
) -> Iterator[pa.RecordBatch]:
    """Yields the batches that the function returns, in the order of the rows.

    Only a few batches are in memory at the same time.
    """
    if threads == 1:
        yield from function(batches)
        return
    waiting: deque[Future[list[pa.RecordBatch]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for batch in batches:
                waiting.append(pool.submit(lambda one: list(function([one])), batch))
                if len(waiting) > 2 * threads:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _batches(rows: pa.Table, most: int) -> list[pa.RecordBatch]:
    return list(rows.combine_chunks().to_batches(max_chunksize=most))


def _table_of(batches: Batches, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches(
        (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches), schema
    )


@overload
def union_all(parts: Sequence[Rows]) -> Rows: ...


@overload
def union_all(parts: Sequence[ReadableRows]) -> ReadableRows: ...


def union_all(parts: Sequence[ReadableRows]) -> ReadableRows:
    """Returns the rows of all parts. All parts must have the same columns, but in any order."""
    stored = [part for part in parts if isinstance(part, StoredRows)]
    if parts and len(stored) == len(parts):
        return union_stored(stored)
    first, *others = map(whole, parts)
    for other in others:
        if not isinstance(first, pa.Table):
            first = first.unionByName(frame_of(first.sparkSession, other))
        elif not isinstance(other, pa.Table):
            first = frame_of(other.sparkSession, first).unionByName(other)
        else:
            first = concat_parts([first, other.select(first.column_names)])
    return first


@overload
def with_value(rows: Rows, name: str, value: str) -> Rows: ...


@overload
def with_value(rows: ReadableRows, name: str, value: str) -> ReadableRows: ...


def with_value(rows: ReadableRows, name: str, value: str) -> ReadableRows:
    """Adds a column with the same string in all rows."""
    if isinstance(rows, StoredRows):
        return rows.with_value(name, value)
    if not isinstance(rows, pa.Table):
        return rows.withColumn(name, F.lit(value))
    return rows.append_column(name, pa.repeat(pa.scalar(value, pa.string()), len(rows)))


def with_nulls(rows: Rows, name: str, kind: pa.DataType) -> Rows:
    """Adds a column of this type that is null in all rows."""
    if not isinstance(rows, pa.Table):
        return rows.withColumn(name, F.lit(None).cast(spark_types(pa.schema([(name, kind)]))[name].dataType))
    return rows.append_column(name, pa.nulls(len(rows), kind))


def with_hash(rows: Rows, column: str, name: str) -> Rows:
    """Adds the int64 XXH64 hash (seed 42) of a column of strings or int64 numbers, which has no nulls."""
    if not isinstance(rows, pa.Table):
        return rows.withColumn(name, F.xxhash64(column))
    import xxhash

    encoded = rows.column(column).combine_chunks().dictionary_encode()
    values = (
        (value.encode() if isinstance(value, str) else value.to_bytes(8, "little", signed=True))
        for value in encoded.dictionary.to_pylist()
    )
    hashes = np.array([xxhash.xxh64_intdigest(value, _SEED) for value in values], np.uint64).view(np.int64)
    return rows.append_column(name, pa.array(hashes[encoded.indices.to_numpy()]))


@overload
def select(rows: Rows, names: Sequence[str]) -> Rows: ...


@overload
def select(rows: ReadableRows, names: Sequence[str]) -> ReadableRows: ...


def select(rows: ReadableRows, names: Sequence[str]) -> ReadableRows:
    """Returns the rows with only the columns `names`."""
    if isinstance(rows, pa.Table | StoredRows):
        return rows.select(list(names))
    return rows.select(*names)


def list_entries(rows: Rows, lists: str, name: str) -> Rows:
    """Returns a row for each element of users' lists: user_key, position (int32, from 1) and the element.

    Args:
        rows: rows with user_key and the column `lists`.
        lists: a column of lists, which are not null.
        name: the name of the column with the elements.
    """
    if not isinstance(rows, pa.Table):
        entries = rows.select("user_key", F.posexplode(lists).alias("position", name))
        return entries.withColumn("position", F.col("position") + 1)
    values = rows.column(lists).combine_chunks()
    lengths = values.value_lengths().to_numpy()
    position = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths) + 1
    columns = [
        rows.column("user_key").take(pa.array(np.repeat(np.arange(len(rows)), lengths))),
        pa.array(position.astype(np.int32)),
        values.flatten(),
    ]
    return pa.Table.from_arrays(columns, ["user_key", "position", name])


def records(rows: Rows) -> list[dict[str, Any]]:
    """Returns a few rows as dictionaries of Python values. For a frame, this runs Spark tasks."""
    return [row.asDict() for row in rows.collect()] if not isinstance(rows, pa.Table) else rows.to_pylist()


def count(rows: Rows) -> int:
    """Returns the number of rows. For a frame, this runs Spark tasks."""
    return rows.count() if not isinstance(rows, pa.Table) else len(rows)


def persist(rows: Rows) -> Rows:
    """Keeps a frame's rows in Spark's cache when they are first computed, for use in several queries."""
    return rows.persist() if not isinstance(rows, pa.Table) else rows


def unpersist(rows: Rows) -> None:
    """Frees the rows that `persist` kept."""
    if not isinstance(rows, pa.Table):
        rows.unpersist()


def spread(rows: Rows, key: str, tasks: int = 0) -> Rows:
    """Distributes the rows of a frame among tasks by the hash of a column.

    There are at least as many tasks as cores, and at least `tasks` tasks. A table is sorted by the column
    instead, because DuckDB's threads return rows in no fixed order.
    """
    if isinstance(rows, pa.Table):
        return rows.take(pc.sort_indices(rows, sort_keys=[(key, "ascending")]))
    return rows.repartition(max(rows.sparkSession.sparkContext.defaultParallelism, tasks), key)


# The functions below convert small Arrow tables to Spark frames, and small frames to tables.


def frame_of(spark: SparkSession, rows: pa.Table | DataFrame) -> DataFrame:
    """Converts an Arrow table to a Spark frame with the same rows. A frame is returned unchanged.

    The driver sends the rows of a table to the JVM.

    Args:
        spark: the session.
        rows: columns of numbers, strings, or lists of numbers. In a table, numbers must not be null.
    """
    if not isinstance(rows, pa.Table):
        return rows
    return spark.createDataFrame(rows.to_pandas(), spark_types(rows.schema))


def table_of(rows: DataFrame) -> pa.Table:
    """Returns the rows of a small Spark frame as an Arrow table, in the order of the frame.

    Args:
        rows: columns of strings, or of numbers that are never null.
    """
    return pa.Table.from_pandas(rows.toPandas(), arrow_schema(rows), preserve_index=False)


def collected(rows: DataFrame) -> pa.Table:
    """Returns the rows of a small Spark frame as an Arrow table. Columns may have any type and nulls."""
    batches: list[pa.RecordBatch] = rows._collect_as_arrow()
    return pa.Table.from_batches(batches, None if batches else arrow_schema(rows))


def arrow_schema(rows: DataFrame) -> pa.Schema:
    """Returns the Arrow types of the columns of a frame."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(rows.schema)


def spark_types(schema: pa.Schema) -> T.StructType:
    """Returns the Spark types of the columns of an Arrow schema."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


# The code below runs SQL over Arrow tables and Parquet files in this process with DuckDB.
#
# Queries are written for Spark. If DuckDB lacks a function of Spark, a macro with the same name adds it to
# DuckDB, for arguments without nulls.

_MACROS = """
CREATE MACRO collect_list(x) AS list(x);
CREATE MACRO sort_array(x) AS list_sort(x);
CREATE MACRO size(x) AS CAST(len(x) AS INT);
CREATE MACRO array_remove(x, removed) AS list_filter(x, LAMBDA v: v <> removed);
"""
_IDENTIFIER = re.compile("`((?:[^`]|``)*)`")

# DuckDB's type of a sum of integers. Spark's type is int64.
_SUM = pa.decimal128(38, 0)


def run_query(text: str, tables: Mapping[str, pa.Table | StoredRows]) -> pa.Table:
    """Returns the result of one query.

    Files of this machine are read in batches. If DuckDB needs more memory than it may use, it writes to its
    folder for temporary files. Files of other file systems are read before the query.

    Args:
        text: SQL, with the names of tables in braces, and with backticks around unusual names of columns.
        tables: maps each name in braces to its table.

    Raises:
        DataError: a file does not exist or is damaged.
        InfrastructureError: a file could not be read.
    """
    import duckdb

    sources = {
        name: rows.read() if isinstance(rows, StoredRows) and not rows.is_local else rows
        for name, rows in tables.items()
    }
    stored = [rows for rows in sources.values() if isinstance(rows, StoredRows)]
    cursor = _database().cursor()
    try:
        for rows in stored:
            rows.require_intact()
        for name, rows in sources.items():
            if not isinstance(rows, StoredRows):
                cursor.register(name, rows)
        result = cursor.sql(_in_duckdb(text, sources)).to_arrow_table()
    except duckdb.Error:
        for rows in stored:
            rows.require_readable()
        raise
    finally:
        cursor.close()
    for index, column in enumerate(result.schema):
        if column.type == _SUM:
            result = result.set_column(index, column.name, result.column(index).cast(pa.int64()))
    return result


def _in_duckdb(text: str, tables: Mapping[str, pa.Table | StoredRows]) -> str:
    """Returns the query in DuckDB's syntax, with the names or the files of the tables inserted."""
    marked = _IDENTIFIER.sub(lambda match: _quoted(match[1].replace("``", "`")), text)
    return marked.format_map(
        {name: rows.sql() if isinstance(rows, StoredRows) else f'"{name}"' for name, rows in tables.items()}
    )


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """Returns the DuckDB database of this process. It stores no tables."""
    import duckdb  # this import takes 0.06 s, so it is made only if it is needed

    # If the process is killed, DuckDB's files remain. A later process deletes the folders of processes that
    # have ended.
    scratch = ScratchFolder(os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None)
    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": len(os.sched_getaffinity(0)),
        "temp_directory": str(scratch.path / "queries"),  # used if DuckDB exceeds its memory limit
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    database = duckdb.connect(config=settings)
    database.execute(_MACROS)
    return database


# The classes below are for rows of published Parquet files that are not in memory.
#
# Queries of DuckDB and functions over batches read the files in batches. So the memory of a stage depends
# on the results that it keeps, and not on the number of rows that it reads.

# Number of rows that `StoredRows.read` reads at a time.
_ROWS_OF_TABLE = 1 << 17
_GLOB = re.compile(r"([*?\[])")


@dataclass(frozen=True)
class StoredFiles:
    """Files of one partition, and the columns to add to their rows.

    Attributes:
        paths: the full paths of the files.
        values: maps the name of each added column to its value, a string that is the same in all rows. The
            files do not contain these columns.
    """

    paths: tuple[str, ...]
    values: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class StoredRows:
    """Rows of published files that are read when they are needed.

    Attributes:
        schema: the names and the Arrow types of the columns.
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
        """Returns the rows of the files that a manifest lists, or the rows of one split.

        Raises:
            DataError: the manifest lacks a column, or a column has a type that this release does not support.
        """
        schema = known_schema(partition, manifest, columns)
        return cls(schema, (StoredFiles(tuple(data_files(partition, manifest, split))),))

    @property
    def column_names(self) -> list[str]:
        """Returns the names of the columns."""
        return list(self.schema.names)

    @property
    def columns(self) -> list[str]:
        """Returns the names of the columns, like the property `columns` of a Spark frame."""
        return self.column_names

    def select(self, names: Sequence[str]) -> StoredRows:
        """Returns the rows with only these columns, in this order."""
        return replace(self, schema=pa.schema([self.schema.field(name) for name in names]))

    def with_value(self, name: str, value: str) -> StoredRows:
        """Returns the rows with an added column that has the same string in all rows."""
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
                with errors_of_file(path, REBUILD), open_file(path) as source:
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
        """Returns whether all files are on a local file system, so that `sql` can read them."""
        return all(file_io.is_local(path) for some in self.files for path in some.paths)

    def sql(self) -> str:
        """Returns a table expression of DuckDB's SQL that reads the rows. `is_local` must be true.

        The expression may contain braces. So insert it into a query after all names in braces were replaced.
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
        # In a pattern of DuckDB, a character in brackets stands for itself.
        local = (file_io.filesystem(path)[1] for path in some.paths)
        paths = ", ".join(_text(_GLOB.sub(r"[\1]", path)) for path in local)
        return f"SELECT {columns} FROM read_parquet([{paths}], hive_partitioning = false)"

    def require_intact(self) -> None:
        """Compares all files with their manifests (storage.file_digests), before DuckDB reads them.

        Raises:
            DataError: a file does not exist or is damaged.
            InfrastructureError: a file could not be read.
        """
        require_all_intact(path for some in self.files for path in some.paths)

    def require_readable(self) -> None:
        """Reads all files.

        Raises:
            DataError: a file does not exist or is damaged.
            InfrastructureError: a file could not be read.
        """
        for _ in self.batches(_ROWS_OF_TABLE):
            pass


def union_stored(parts: Sequence[StoredRows]) -> StoredRows:
    """Returns the rows of all parts, at least one. All must have the same columns, but in any order."""
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
