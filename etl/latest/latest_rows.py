"""Finds the latest row of each user or item: by Arrow in the driver or in tasks, or by Spark expressions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Literal, assert_never

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from etl.ops.base import choose_engine
from etl.workflow.chains import FEATURE_ARROW_TYPES
from spark.workers import Workers
from storage.feature_spec import ROW_ID, FeatureSpec
from storage.manifest import Manifest, data_files
from storage.paths import Partition
from storage.publish import rows_of
from storage.read_parquet import read_file

# With at most this number of rows, the driver reads the files itself, one day at a time. This saves the time
# to plan and start Spark jobs, which would take most of the time of a small run
# (docs/decisions/jobs.md#0061).
ROWS_IN_DRIVER = 10_000_000
_DAY = "_dt"


@dataclass(frozen=True)
class PublishedRows:
    """The rows of one day in a published feature partition: all rows, or only the rows of one split.

    Attributes:
        partition: the feature partition.
        manifest: the manifest of the partition, which lists its files.
        label: the split whose rows are used; None for all rows.
    """

    partition: Partition
    manifest: Manifest
    label: str | None = None

    @property
    def rows(self) -> int:
        """Returns the number of rows."""
        return sum(entry.rows for entry in self.manifest.split_files(self.label))

    @property
    def files(self) -> list[str]:
        """Returns the paths of the files."""
        return data_files(self.partition, self.manifest, self.label)


def latest_published_rows(
    workers: Workers,
    published: Sequence[PublishedRows],
    key: str,
    columns: Sequence[str],
    spec: FeatureSpec,
    engine: Literal["auto", "sql", "arrow"],
) -> pa.Table | DataFrame:
    """Returns the latest row of each key: the row with the largest row_id on the key's last day.

    Args:
        workers: the processes that run the tasks.
        published: the rows to search. Two elements may have rows of the same day, for example of different
            splits.
        key: the column of the key, such as user_key.
        columns: the features of the result, in addition to `key`.
        spec: the features of the published rows.
        engine: `workflow.engine` of the configuration.

    Returns:
        An Arrow table sorted by key, or a Spark frame. The result is a frame if the engine is `sql`, or if
        there are more than ROWS_IN_DRIVER rows and Spark runs the tasks.
    """
    chosen = choose_engine(engine)
    if chosen == "sql":
        return latest_rows(
            [
                (day.partition.dt, rows_of(workers.spark, day.partition, day.manifest, day.label))
                for day in published
            ],
            key,
            columns,
        )
    if chosen != "arrow":
        assert_never(chosen)
    schema = latest_schema(key, columns, spec)
    files: dict[str, list[str]] = {}
    for day in published:
        files.setdefault(day.partition.dt, []).extend(day.files)
    if sum(day.rows for day in published) <= ROWS_IN_DRIVER:
        return latest_in_days([files[day] for day in sorted(files)], key, schema).select([key, *columns])
    of_files = tuple((day, path) for day in sorted(files) for path in files[day])
    dated = schema.append(pa.field(_DAY, pa.string()))
    rows = workers.run(len(of_files), partial(_latest_of, of_files, key, schema), dated)
    if isinstance(rows, pa.Table):
        of_days = [
            rows.filter(pc.equal(rows[_DAY], day)).select(schema.names) for day in sorted(files, reverse=True)
        ]
        return latest_of_days(of_days, key, schema).select([key, *columns])
    return latest_rows([("", rows)], key, columns)


def latest_rows(days: Sequence[tuple[str, DataFrame]], key: str, columns: Sequence[str]) -> DataFrame:
    """Returns the latest row of each key: the row with the largest row_id on the key's last day.

    Args:
        days: pairs of a date and a frame of rows of this date. The frames have the key, row_id and the
            columns of `columns`. A frame that has the column `_dt` (the date of each row) may contain several
            days.
        key: the column of the key, such as user_key.
        columns: the columns of the result, in addition to `key`.
    """
    rows = [
        frame.select(key, ROW_ID, *columns, F.col(_DAY) if _DAY in frame.columns else F.lit(day).alias(_DAY))
        for day, frame in days
    ]
    latest = F.max_by(F.struct(*(F.col(name) for name in columns), F.col(ROW_ID)), F.struct(_DAY, ROW_ID))
    grouped = reduce(DataFrame.unionByName, rows).groupBy(key).agg(latest.alias("latest"))
    return grouped.select(key, *(F.col(f"latest.{name}").alias(name) for name in columns))


def _latest_of(
    of_files: tuple[tuple[str, str], ...], key: str, schema: pa.Schema, index: int
) -> Iterator[pa.RecordBatch]:
    """Runs one task: returns the latest row of each key in one file, with the column `_dt`.

    Each task returns only one row per key of its file, and Spark aggregates these rows. This is much faster
    than aggregating all rows in Spark, because Spark would have to sort the rows.

    Args:
        of_files: pairs of a date and the path of a file with rows of this date.
        key: the column of the key.
        schema: the result of `latest_schema`.
        index: the index of the file to read.
    """
    day, path = of_files[index]
    rows = latest_in_file(path, key, schema)
    yield from rows.append_column(_DAY, pa.array([day] * len(rows), pa.string())).to_batches()


def latest_schema(key: str, columns: Sequence[str], spec: FeatureSpec) -> pa.Schema:
    """Returns the schema of the rows that `latest_in_days` returns: key, row_id and features.

    Args:
        key: the column of the key (string), such as user_key.
        columns: names of features of `spec`.
        spec: the features of the files.
    """
    dtypes = {feature.name: FEATURE_ARROW_TYPES[feature.dtype] for feature in spec.features}
    fields = {key: pa.string(), ROW_ID: pa.int64(), **{name: dtypes[name] for name in columns}}
    return pa.schema(list(fields.items()))


def latest_in_days(days: Sequence[Sequence[str]], key: str, schema: pa.Schema) -> pa.Table:
    """Returns the latest row of each key, sorted by key.

    The latest row is the row with the largest row_id on the key's last day.

    Only one day is in memory at a time, apart from the result.

    Args:
        days: the paths of the Parquet files of each day, from the earliest day to the latest.
        key: the column of the key.
        schema: the result of `latest_schema`.
    """
    return latest_of_days(
        (
            pa.concat_tables([schema.empty_table(), *(latest_in_file(path, key, schema) for path in files)])
            for files in reversed(days)
        ),
        key,
        schema,
    )


def latest_of_days(latest_first: Iterable[pa.Table], key: str, schema: pa.Schema) -> pa.Table:
    """Returns the latest row of each key, sorted by key.

    Args:
        latest_first: for each day, rows with the columns of `schema`, from the latest day to the earliest. A
            key may have several rows on a day.
        key: the column of the key.
        schema: the result of `latest_schema`.
    """
    latest_rows: list[pa.Table] = [schema.empty_table()]
    for of_day in latest_first:
        rows = _latest(of_day, key).cast(schema)
        known = pa.concat_tables(table.select([key]) for table in latest_rows)[key]
        latest_rows.append(rows.filter(pc.invert(pc.is_in(rows[key], value_set=known.combine_chunks()))))
    latest = pa.concat_tables(latest_rows).combine_chunks()
    return latest.take(pc.sort_indices(latest, sort_keys=[(key, "ascending")]))


def latest_in_file(path: str, key: str, schema: pa.Schema) -> pa.Table:
    """Returns each key's row with the largest row_id in a Parquet file, with the columns of `schema`."""
    rows = read_file(path, schema.names)
    return _latest(rows.select(schema.names), key).cast(schema)


def _latest(rows: pa.Table, key: str) -> pa.Table:
    """Returns each key's row with the largest row_id, from rows of one day. Each row_id occurs once."""
    largest = rows.select([key, ROW_ID]).group_by(key).aggregate([(ROW_ID, "max")])[f"{ROW_ID}_max"]
    return rows.filter(pc.is_in(rows[ROW_ID], value_set=largest.combine_chunks()))
