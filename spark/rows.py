"""Operations on rows that are an Arrow table in this process, or a frame of Spark.

On one machine, work needs no Spark: to plan a query and to start its tasks takes longer than the work. So the
steps of scoring and evaluation take rows of both kinds. Each step is written once, as a query of SQL that
Spark and DuckDB (spark/duckdb_queries.py) both understand, or as a function over batches of rows.

Rows of large tables are not read into memory in this process. They are `StoredRows`: `query` and
`map_rows_in_threads` read the files piece by piece.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.lazy_pyspark import F
from spark.arrow_frames import frame_of, spark_types
from spark.duckdb_queries import run_query
from spark.stored_rows import StoredRows, union_stored
from spark.tasks import map_batches
from storage.manifest import Manifest
from storage.parquet_files import concat_parts, read_table
from storage.paths import Partition
from storage.publish import rows_of
from storage.run_context import RunContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows: TypeAlias = "pa.Table | DataFrame"
# Rows that may also be in files that are read piece by piece.
ReadableRows: TypeAlias = "pa.Table | StoredRows | DataFrame"
Batches = Iterable[pa.RecordBatch]

# Rows of a table that a function gets in one batch; Spark's default is the same.
_BATCH_ROWS = 10_000
_SEED = 42  # of Spark's xxhash64


def read_rows(
    context: RunContext,
    partition: Partition,
    manifest: Manifest,
    split: str | None = None,
    columns: Sequence[str] | None = None,
) -> Rows:
    """Reads the rows of the files that a manifest names, or those of one split.

    Returns an Arrow table if the job keeps its rows in this process (RunContext.in_process), else a frame.
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
    """Does the same as `read_rows` for a large table, but does not read its rows into this process."""
    if context.in_process:
        return StoredRows.of(partition, manifest, split, columns)
    return rows_of(context.spark, partition, manifest, split, columns)


def whole(rows: ReadableRows) -> Rows:
    """Returns rows of files as a table with all of them in memory. Other rows are returned unchanged."""
    return rows.read() if isinstance(rows, StoredRows) else rows


def query(text: str, **tables: ReadableRows) -> Rows:
    """Runs one query, and returns its rows: a lazy frame if one of `tables` is a frame, else a table.

    Args:
        text: SQL. The names of tables stand in braces, such as `SELECT user_key FROM {clicks}`. `quoted`
            writes names of columns that a configuration chooses. Only functions of both engines may occur
            (spark/duckdb_queries.py lists what it adds to DuckDB). Sums of integers must be smaller than
            2⁶³. A hint for Spark (`/*+ BROADCAST(name) */`) is a comment for DuckDB.
        tables: the rows by the name in braces.
    """
    frames = [rows for rows in tables.values() if not isinstance(rows, pa.Table | StoredRows)]
    if not frames:
        return run_query(text, tables)
    session = frames[0].sparkSession
    of_session = {name: frame_of(session, whole(rows)) for name, rows in tables.items()}
    return _query_frames(session, text, of_session)


def quoted(name: str) -> str:
    """Returns the name of a column as it is written in the text of a query, whatever characters it has."""
    return "`" + name.replace("`", "``").replace("{", "{{").replace("}", "}}") + "`"


def _query_frames(session: SparkSession, text: str, frames: Mapping[str, DataFrame]) -> DataFrame:
    """Does the work of `query` in Spark, which knows the frames as temporary views while it plans.

    `session.sql(text, **frames)` and `spark.catalog.dropTempView` would also remove frames from the cache.
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
    """Applies a function to batches of rows, and returns the batches that the function returns as rows.

    In Spark, the function is called once per task. For a table it is called once.

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
    """Does the same as `map_rows`, but calls the function in several threads if the rows are no frame.

    Args:
        rows, function, schema: as for `map_rows`. Rows of files are read while threads work on earlier rows.
        imports: modules that Spark's workers import before they are forked.
        threads: number of threads. Each call of the function gets one batch of rows.
        batch_rows: number of rows of these batches. It does not depend on the number of threads, because
            rounding may depend on which rows are computed together.
    """
    if isinstance(rows, StoredRows):
        return _table_of(_map_in_threads(rows.batches(batch_rows), function, threads), schema)
    if isinstance(rows, pa.Table):
        return _table_of(_map_in_threads(_batches(rows, batch_rows), function, threads), schema)
    return map_batches(rows, function, spark_types(schema), imports)


def _map_in_threads(
    batches: Batches, function: Callable[[Batches], Batches], threads: int
) -> Iterator[pa.RecordBatch]:
    """Yields the batches that the function returns, in order. Only a few batches are in memory at a time."""
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
    """Returns the rows of all parts, which have the same columns in any order."""
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
    """Adds a column with the same text in all rows."""
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
    """Adds the hash of a column of texts or int64 numbers without nulls: XXH64 with the seed 42, an int64."""
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
    """Returns some columns."""
    if isinstance(rows, pa.Table | StoredRows):
        return rows.select(list(names))
    return rows.select(*names)


def list_entries(rows: Rows, lists: str, name: str) -> Rows:
    """Returns the elements of the lists of users: user_key, position (int32, from 1), and the element.

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
    """Returns a few rows as dictionaries of Python values. A frame is computed."""
    return [row.asDict() for row in rows.collect()] if not isinstance(rows, pa.Table) else rows.to_pylist()


def count(rows: Rows) -> int:
    """Returns the number of rows. A frame is computed."""
    return rows.count() if not isinstance(rows, pa.Table) else len(rows)


def persist(rows: Rows) -> Rows:
    """Keeps the rows of a frame when they are first computed, because several queries need them."""
    return rows.persist() if not isinstance(rows, pa.Table) else rows


def unpersist(rows: Rows) -> None:
    """Frees the rows that `persist` kept."""
    if not isinstance(rows, pa.Table):
        rows.unpersist()


def spread(rows: Rows, key: str, tasks: int = 0) -> Rows:
    """Distributes the rows of a frame over tasks by a column: over `tasks`, at least one for each core.

    A table is sorted by the column, because the order of a query's rows depends on threads.
    """
    if isinstance(rows, pa.Table):
        return rows.take(pc.sort_indices(rows, sort_keys=[(key, "ascending")]))
    return rows.repartition(max(rows.sparkSession.sparkContext.defaultParallelism, tasks), key)
