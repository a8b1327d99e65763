"""Replaces a date partition: writes files under new names, verifies them, and replaces the manifest.

Readers see the previous rows until the manifest is replaced, even if the job is killed before this.
Afterwards they see the new rows. `publish_rows` publishes the rows of an Arrow table or of a Spark frame,
sorted by one column.
"""

from __future__ import annotations

import base64
import json
import math
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from conf.errors import DataError
from conf.lazy_imports import T
from storage import file_io
from storage.feature_spec import FLOAT32_MAX
from storage.file_digests import (
    digest_of_file,
    is_compared,
    map_in_threads,
    named,
    new_file,
    record_compared,
    split_described,
)
from storage.manifest import FileEntry, Manifest, data_files, is_published, read_manifest, replace_manifest
from storage.paths import Partition
from storage.read_parquet import require_intact_file
from storage.remove import delete_leftovers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "Rules",
    "map_files",
    "new_attempt",
    "own_path",
    "publish",
    "publish_facts",
    "publish_files",
    "read_published",
    "require_intact_for_spark",
    "rows_of",
    "with_footer",
    "write_files",
]

# Maximum number of bytes of a row group, larger than any file that jobs write. With a smaller value, the
# Parquet writer would divide a file into several row groups, by its own estimate of their bytes.
_ONE_ROW_GROUP_BYTES = 2**30
# Maximum number of tasks for each core of the cluster, if tasks read many files.
_TASKS_OF_CORE = 4


def publish(
    rows: DataFrame,
    partition: Partition,
    *,
    inputs: Mapping[str, str],
    row_group_rows: int,
    expected_rows: int | None = None,
    rows_in: int | None = None,
    dropped: Mapping[str, int] | None = None,
    facts: Mapping[str, Any] | None = None,
    rules: Rules | None = None,
    sort_by: Sequence[str] = (),
    split_column: str | None = None,
    grace_hours: float = 24.0,
) -> Manifest:
    """Replaces one partition with `rows`.

    With `sort_by`, rows are sorted over all files. With `expected_rows`, rows are distributed evenly over as
    few files as `row_group_rows` allows. Without `sort_by` and `expected_rows`, rows keep their order and
    their Spark partitions. Each file is one row group of at most `row_group_rows` rows, or a few more if rows
    are distributed evenly.

    Args:
        rows: the new rows.
        partition: where to publish the rows.
        inputs: maps the name of each input from which the rows were computed to the digest of the input.
        row_group_rows: largest number of rows of a file.
        expected_rows: the required number of rows; None if the caller does not know it.
        rows_in: number of rows read, for the manifest; None means the number of written rows.
        dropped: maps each reason for leaving out rows to the number of rows, for the manifest.
        facts: JSON values for readers of the manifest.
        rules: conditions on the statistics of the written files.
        sort_by: the columns to sort by, in order of priority; empty if rows are not sorted.
        split_column: column with the split of each row. Each split gets its own files, and the split is the
            label of these files. The column itself is not written.
        grace_hours: files that no manifest lists are deleted if they are older than this number of hours.

    Raises:
        DataError: the written rows break a rule; the previous rows remain published.
    """
    labelled = write_files(
        rows, partition, new_attempt(partition), row_group_rows, expected_rows, sort_by, split_column
    )
    return publish_files(
        partition,
        labelled,
        inputs=inputs,
        expected_rows=expected_rows,
        rows_in=rows_in,
        dropped=dropped,
        facts=facts,
        rules=rules,
        grace_hours=grace_hours,
    )


def new_attempt(partition: Partition) -> str:
    """Returns the path of a new folder for the data files of one attempt to write a partition.

    The path is relative to the partition's folder.
    """
    return f"{partition.data}/a{uuid.uuid4().hex[:12]}"


def own_path(path: str) -> str:
    """Makes a path unique: `…/part-00000.parquet` becomes `…/part-00000.<16 hex digits>.parquet`.

    Spark may repeat a task, or run two attempts of it at the same time. Each attempt writes to a unique path
    and returns this path. So a second attempt never replaces the file of the first attempt.
    """
    stem, _, suffix = path.rpartition(".")
    return f"{stem}.{uuid.uuid4().hex[:16]}.{suffix}"


def publish_files(
    partition: Partition,
    files: Mapping[str, str | None],
    *,
    inputs: Mapping[str, str],
    expected_rows: int | None = None,
    rows_in: int | None = None,
    dropped: Mapping[str, int] | None = None,
    facts: Mapping[str, Any] | None = None,
    rules: Rules | None = None,
    grace_hours: float = 24.0,
) -> Manifest:
    """Verifies Parquet files of a partition, makes them durable, and replaces the partition with them.

    Args:
        partition: where to publish the files.
        files: maps the name of each file (storage.file_digests.named, or `with_footer`), relative to the
            partition's folder, to its label (the split of its rows, or None). A file without a digest in its
            name is read to compute the digest. A file whose name does not describe the footer is opened to
            read the footer. The partition has the rows of the first file, then those of the second file, and
            so on. At least one file is needed, because it defines the columns; this file may have no rows.
        inputs, expected_rows, rows_in, dropped, facts, rules, grace_hours: as in `publish`.

    Raises:
        DataError: the written rows break a rule; the previous rows remain published.
    """
    entries, schema = _described(partition, files)
    verify(partition, entries, schema, expected_rows, rules or Rules())
    written = sum(file.entry.rows for file in entries)
    manifest = Manifest(
        table=partition.table,
        partition=partition.dt,
        files=tuple(file.entry for file in entries if file.entry.rows),
        schema=schema,
        inputs=dict(inputs),
        rows_in=written if rows_in is None else rows_in,
        dropped=dict(dropped or {}),
        facts=dict(facts or {}),
        created_at=file_io.utc_now(),
    )
    previous = read_manifest(partition) if is_published(partition) else None
    file_io.make_durable(data_files(partition, manifest), partition.root)
    replace_manifest(partition, manifest)
    delete_leftovers(partition, [manifest, previous], grace_hours, replaced=previous)
    return manifest


def publish_facts(partition: Partition, *, inputs: Mapping[str, str], facts: Mapping[str, Any]) -> Manifest:
    """Publishes a partition that has only a manifest with facts, and no data files."""
    manifest = Manifest(
        table=partition.table,
        partition=partition.dt,
        files=(),
        schema=(),
        inputs=dict(inputs),
        facts=dict(facts),
        created_at=file_io.utc_now(),
    )
    replace_manifest(partition, manifest)
    return manifest


def write_files(
    rows: DataFrame,
    partition: Partition,
    attempt: str,
    row_group_rows: int,
    expected_rows: int | None,
    sort_by: Sequence[str],
    split_column: str | None,
) -> dict[str, str | None]:
    """Writes Parquet files into the folder of an attempt, but does not publish them.

    Returns a mapping from the name of each file (storage.file_digests.named), relative to the partition's
    folder, to its label.
    """
    if split_column is None:
        _write(
            _laid_out(rows, row_group_rows, expected_rows, sort_by), partition.file(attempt), row_group_rows
        )
        labelled: dict[str, str | None] = {attempt: None}
    else:
        labelled = {}
        rows = rows.persist()  # otherwise Spark would compute all rows again for each split
        counted = {row[split_column]: row["count"] for row in rows.groupBy(split_column).count().collect()}
        for split, count in sorted(counted.items()):
            folder = f"{attempt}/{split}"
            part = rows.where(rows[split_column] == split).drop(split_column)
            _write(_laid_out(part, row_group_rows, count, sort_by), partition.file(folder), row_group_rows)
            labelled[folder] = split
        rows.unpersist()
    return {
        f"{folder}/{name.rsplit('/', 1)[1]}": label
        for folder, label in labelled.items()
        for name in _with_digests(rows.sparkSession, written_files(partition.file(folder)))
    }


def _described(
    partition: Partition, files: Mapping[str, str | None]
) -> tuple[list[VerifiedFile], tuple[tuple[str, str], ...]]:
    written: list[VerifiedFile] = []
    schema: tuple[tuple[str, str], ...] = ()
    for file, label in files.items():
        name, digest, footer = split_described(file)
        path = partition.file(name)
        columns, file_rows, file_bytes, groups, statistics = (
            describe(path) if footer is None else _unpacked(footer)
        )
        if schema and columns != schema:
            raise DataError(
                f"{path} has the columns {columns}, but other files of this partition have {schema}",
                "rerun the job",
            )
        schema = columns
        digest = digest or (digest_of_file(path) if file_rows else None)
        entry = FileEntry(name, file_rows, file_bytes, groups, label, digest)
        written.append(VerifiedFile(entry, statistics))
    return written, schema


def _laid_out(
    rows: DataFrame, row_group_rows: int, expected_rows: int | None, sort_by: Sequence[str]
) -> DataFrame:
    files = None if expected_rows is None else max(1, -(-expected_rows // row_group_rows))
    if sort_by and files == 1:
        return rows.repartition(1).sortWithinPartitions(
            *sort_by
        )  # do not use coalesce, which would also run the preceding steps in one task
    if sort_by:
        ranged = rows.repartitionByRange(files, *sort_by) if files else rows.repartitionByRange(*sort_by)
        return ranged.sortWithinPartitions(*sort_by)
    if files is None:
        return rows
    return rows.repartition(files)


def _write(rows: DataFrame, folder: str, row_group_rows: int) -> None:
    writer = rows.write.option("parquet.block.size", _ONE_ROW_GROUP_BYTES)
    # Spark distributes the rows of each task evenly, so the files differ by at most one row per task. The
    # limit is a little larger than `row_group_rows`, so that no tiny extra file is written for these rows.
    writer.option(
        "maxRecordsPerFile", row_group_rows + rows.sparkSession.sparkContext.defaultParallelism * 64
    ).parquet(file_io.for_spark(folder))


def read_published(
    spark: SparkSession, partition: Partition, split: str | None = None, columns: Sequence[str] | None = None
) -> DataFrame:
    """Reads the rows of a published partition, or of one of its splits.

    The rows are those of the files that the manifest lists.

    Raises:
        DataError: the partition is not published.
    """
    return rows_of(spark, partition, read_manifest(partition), split, columns)


def rows_of(
    spark: SparkSession,
    partition: Partition,
    manifest: Manifest,
    split: str | None = None,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Reads the rows of the files that a manifest lists.

    The rows are the same even if the partition was replaced in the meantime.

    Raises:
        DataError: a file is damaged.
    """
    files = data_files(partition, manifest, split)
    require_intact_for_spark(spark, files)
    schema = spark_schema(manifest.schema)
    if not files:
        rows = spark.createDataFrame([], schema)
    else:
        rows = spark.read.schema(schema).parquet(*map(file_io.for_spark_reader, files))
    return rows.select(*columns) if columns is not None else rows


# The functions below hash and compare files that Spark's JVM writes and reads. Python tasks do this
# themselves.


def require_intact_for_spark(spark: SparkSession, paths: Sequence[str]) -> None:
    """Compares files with their manifests before Spark's JVM reads them, unless this process has done so.

    Raises:
        DataError: a file does not exist or is damaged.
        InfrastructureError: a file could not be read.
    """
    unread = [path for path in dict.fromkeys(paths) if not is_compared(path)]
    map_files(spark, require_intact_file, unread)
    for path in unread:  # tasks have compared these files in other processes
        record_compared(path)


def _with_digests(spark: SparkSession, paths: Sequence[str]) -> list[str]:
    """Returns the paths of files that Spark's JVM has written, each followed by the digest of the file."""
    digests = map_files(spark, digest_of_file, paths)
    return [named(path, digest) for path, digest in zip(paths, digests, strict=True)]


def map_files(spark: SparkSession | None, function: Callable[[str], str], paths: Sequence[str]) -> list[str]:
    """Calls `function` for each path of a file. Returns the results in the order of the paths.

    If Spark uses other machines, its tasks call the function. Otherwise threads of this process call it,
    because starting tasks would take longer.
    """
    if spark is None or not paths or str(spark.sparkContext.master).startswith("local"):
        return map_in_threads(function, paths)
    tasks = min(len(paths), _TASKS_OF_CORE * spark.sparkContext.defaultParallelism)
    return list(spark.sparkContext.parallelize(paths, tasks).map(function).collect())


# The code below checks written files before they are published.

FINITE = (-FLOAT32_MAX, math.inf)  # the allowed range of a dense feature


@dataclass(frozen=True)
class Rules:
    """Conditions on every written row.

    Attributes:
        not_null: the columns that must not contain nulls.
        ranges: maps a column to (low, high): each value must be at least low and below high.
    """

    not_null: Sequence[str] = ()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class VerifiedFile:
    """A written file and its Parquet statistics.

    Attributes:
        entry: the entry of the file in the future manifest.
        statistics: maps each column to (number of nulls, lowest value, highest value).
    """

    entry: FileEntry
    statistics: Mapping[str, tuple[int, Any, Any]]


def verify(
    partition: Partition,
    files: Sequence[VerifiedFile],
    schema: tuple[tuple[str, str], ...],
    expected_rows: int | None,
    rules: Rules,
) -> None:
    """Checks the written files against the expected rows, the schema and the rules.

    Raises:
        DataError: the files do not meet a condition. The message contains the column, the problem and the
            remedy.
    """
    written = sum(file.entry.rows for file in files)
    if expected_rows is not None and written != expected_rows:
        raise DataError(
            f"{partition.path}: {written} rows were written, but {expected_rows} were expected",
            "rerun the job: its input probably changed while it ran; if that fails too, please report it",
        )
    names = {name for name, _ in schema}
    for column in [*rules.not_null, *rules.ranges]:
        if column not in names:
            raise DataError(f"{partition.path}: the column {column} was not written", "rerun the job")
    for column in rules.not_null:
        nulls = sum(file.statistics[column][0] for file in files)
        if nulls:
            raise null_column(partition.path, column, nulls, written)
    for column, (low, high) in rules.ranges.items():
        bounds = [file.statistics[column][1:] for file in files if file.entry.rows]
        lowest = min((least for least, _ in bounds if least is not None), default=low)
        highest = max((most for _, most in bounds if most is not None), default=low)
        if math.isinf(lowest) or math.isinf(highest):
            raise DataError(
                f"{partition.path}: {column} is infinite in some rows (values in [{lowest}, {highest}])",
                f"add `clip` as the last operator of {column} in `features`, or correct the raw log",
            )
        if lowest < low or highest >= high:
            raise DataError(
                f"{partition.path}: {column} has values from {lowest} to {highest}, but they must be at "
                f"least {low} and below {high}",
                "the rows do not fit the workflow version: run build_features for this date again, then this "
                "job",
            )


def null_column(path: str, column: str, nulls: int, rows: int) -> DataError:
    """Returns the error for nulls in a column that must have none.

    Args:
        path: the file with the column, or the file from which the rows with the column were computed.
        column: name of the column that contains the nulls.
        nulls, rows: number of nulls, and number of rows.
    """
    return DataError(
        f"{path}: {column} is null in {nulls} of {rows} rows",
        f"add the operator `fill` for {column} (and `clip` before `log1p`) in `features`, or correct the raw "
        "log",
    )


# The functions below read footers of Parquet files: rows, row groups, columns and their statistics.

Description = tuple[tuple[tuple[str, str], ...], int, int, tuple[int, ...], dict[str, tuple[int, Any, Any]]]


def written_files(folder: str) -> list[str]:
    """Returns the full paths of the Parquet files that Spark wrote to a folder, sorted by name.

    The order of the names is the order of Spark's partitions.
    """
    scheme = folder.split("://", 1)[0] + "://" if "://" in folder else ""
    return [scheme + info.path for info in file_io.list_files(folder) if info.path.endswith(".parquet")]


def describe(path: str) -> Description:
    """Reads the footer of a Parquet file.

    Returns:
        (columns, rows, bytes, groups, statistics): a pair (name, Arrow type) for each column; the number of
        rows and of bytes of the file; the number of rows of each row group; and a dictionary that maps each
        column to (number of nulls, lowest value, highest value).
    """
    files, inner = file_io.filesystem(path)
    with files.open_input_file(inner) as source:
        size = source.size()
        parquet = pq.ParquetFile(source)
        footer = parquet.metadata
        # Remove " not null": whether elements of a list may be null depends on Spark's plan, not on the
        # table.
        columns = tuple(
            (field.name, str(field.type).replace(" not null", "")) for field in parquet.schema_arrow
        )
        groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
        statistics = (
            {
                chunk.path_in_schema: _over_groups(groups, index, chunk.path_in_schema)
                for index, chunk in enumerate(groups[0].column(i) for i in range(footer.num_columns))
            }
            if groups
            else {name: (0, None, None) for name, _ in columns}
        )
    return columns, footer.num_rows, size, tuple(group.num_rows for group in groups), statistics


def with_footer(name: str) -> str:
    """Returns the name of a written file, with a description of its footer.

    A task calls this function for a file that it has written and closed. So the task reads the footer from
    the file, and the process that publishes the file need not open it.

    Args:
        name: the full path of the file with its digest (storage.file_digests.named).
    """
    path, digest, _ = split_described(name)
    if digest is None:
        raise ValueError(f"internal error, please report: the name of {path} has no digest")
    columns, rows, size, groups, statistics = describe(path)
    # Rules limit only numbers.
    bounds = {
        column: [nulls, *(value if isinstance(value, int | float) else None for value in values)]
        for column, (nulls, *values) in statistics.items()
    }
    packed = zlib.compress(json.dumps([columns, rows, size, groups, bounds]).encode(), 1)
    return f"{name}#{base64.urlsafe_b64encode(packed).decode()}"


def _unpacked(footer: str) -> Description:
    """Returns the description of a Parquet footer that `with_footer` added to the file's name as text."""
    columns, rows, size, groups, bounds = json.loads(zlib.decompress(base64.urlsafe_b64decode(footer)))
    statistics = {column: tuple(values) for column, values in bounds.items()}
    return tuple((name, kind) for name, kind in columns), rows, size, tuple(groups), statistics


def _over_groups(groups: Sequence[Any], index: int, name: str) -> tuple[int, Any, Any]:
    nulls, lowest, highest = 0, None, None
    for group in groups:
        statistics = group.column(index).statistics
        if statistics is None:
            continue
        nulls += statistics.null_count or 0
        if not statistics.has_min_max:
            continue
        try:
            low, high = statistics.min, statistics.max
        except pa.ArrowNotImplementedError:  # pyarrow cannot read statistics of decimals; no rule needs them
            continue
        lowest = low if lowest is None else min(lowest, low)
        highest = high if highest is None else max(highest, high)
    return nulls, lowest, highest


def spark_schema(columns: Sequence[tuple[str, str]]) -> T.StructType:
    """Converts the columns of a manifest to a Spark schema.

    Raises:
        DataError: a column has a type that this release does not support.
    """
    types = _spark_types()
    unknown = [(name, kind) for name, kind in columns if kind not in types]
    if unknown:
        raise DataError(
            f"the manifest of a table names columns whose types this release does not know: {unknown}",
            "run the job that writes the table again",
        )
    return T.StructType([T.StructField(name, types[kind]) for name, kind in columns])


def _spark_types() -> dict[str, T.DataType]:
    """Maps the type of a column in a manifest to its Spark type."""
    return {
        "bool": T.BooleanType(),
        "int32": T.IntegerType(),
        "int64": T.LongType(),
        "float": T.FloatType(),
        "double": T.DoubleType(),
        "string": T.StringType(),
        "list<element: int8>": T.ArrayType(T.ByteType()),
        "list<element: int32>": T.ArrayType(T.IntegerType()),
        "list<element: int64>": T.ArrayType(T.LongType()),
        "list<element: float>": T.ArrayType(T.FloatType()),
        "list<element: string>": T.ArrayType(T.StringType()),
    }


def publish_rows(
    rows: pa.Table | DataFrame,
    partition: Partition,
    *,
    inputs: Mapping[str, str],
    row_group_rows: int,
    sort_by: str | Sequence[str] = (),
    expected_rows: int | None = None,
    rows_in: int | None = None,
    dropped: Mapping[str, int] | None = None,
    facts: Mapping[str, Any] | None = None,
    rules: Rules | None = None,
    grace_hours: float = 24.0,
) -> Manifest:
    """Replaces one partition with `rows`. A table and a frame with the same rows give the same partition.

    This process writes the rows of an Arrow table; Spark tasks write the rows of a frame. Rows are sorted
    over all files and distributed evenly over as few files as `row_group_rows` allows.

    Args:
        rows: the new rows.
        partition: where to publish the rows.
        inputs: maps the name of each input from which the rows were computed to the digest of the input.
        row_group_rows: largest number of rows of a file.
        sort_by: the column or columns to sort by. If `sort_by` is empty, rows keep their order.
        expected_rows: the required number of rows, if the caller knows it. If it is None and `rows` is a
            frame, the frame is persisted and counted.
        rows_in, dropped, facts, rules, grace_hours: see storage.publish.publish.

    Raises:
        DataError: the written rows break a rule; the previous rows remain published.
    """
    order = [sort_by] if isinstance(sort_by, str) else list(sort_by)
    if isinstance(rows, pa.Table):
        keys = [(name, "ascending") for name in order]
        in_order = rows.take(pc.sort_indices(rows, sort_keys=keys)) if keys else rows
        files = write_table(in_order, partition, row_group_rows)
        return publish_files(
            partition,
            dict.fromkeys(files),
            inputs=inputs,
            expected_rows=len(rows) if expected_rows is None else expected_rows,
            rows_in=rows_in,
            dropped=dropped,
            facts=facts,
            rules=rules,
            grace_hours=grace_hours,
        )
    kept = rows.persist() if expected_rows is None else rows
    published = publish(
        kept,
        partition,
        inputs=inputs,
        row_group_rows=row_group_rows,
        expected_rows=kept.count() if expected_rows is None else expected_rows,
        rows_in=rows_in,
        dropped=dropped,
        facts=facts,
        rules=rules,
        sort_by=order,
        grace_hours=grace_hours,
    )
    if expected_rows is None:
        kept.unpersist()
    return published


def write_table(rows: pa.Table, partition: Partition, row_group_rows: int) -> list[str]:
    """Writes the rows in order to files of at most `row_group_rows` rows, which are not published yet.

    Returns the names of the files (storage.file_digests.named), relative to the partition. A table without
    rows gives one file.
    """
    number = max(1, -(-len(rows) // row_group_rows))
    attempt, written = new_attempt(partition), []
    for index in range(number):
        first, last = len(rows) * index // number, len(rows) * (index + 1) // number
        name = own_path(f"{attempt}/part-{index:05d}.parquet")
        with new_file(partition.file(name)) as file:
            pq.write_table(
                rows.slice(first, last - first), file.sink, compression="zstd", row_group_size=row_group_rows
            )
        written.append(named(name, file.digest))
    return written
