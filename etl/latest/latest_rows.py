"""Finds the latest row of each user or item: by Arrow in the driver or in tasks, or by Spark expressions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from etl.latest.rows_in_files import latest_in_days, latest_in_file, latest_schema
from etl.ops.choose_engine import choose_engine
from spark.arrow_frames import spark_types
from spark.tasks import run_tasks
from storage.feature_spec import ROW_ID, FeatureSpec
from storage.manifest import Manifest, data_files
from storage.paths import Partition
from storage.publish import rows_of

# With at most this number of rows, the driver reads the files itself. It keeps one day in memory, and saves
# the planning and the start of Spark jobs, which take most of the time of a small run (docs/decisions/0061).
ROWS_IN_DRIVER = 10_000_000

_DAY = "_dt"


@dataclass(frozen=True)
class PublishedRows:
    """The rows of one day in a published feature partition, or those of one split.

    Attributes:
        partition: the feature partition.
        manifest: names the files of the partition.
        label: the split whose rows count; None for all rows.
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
    spark: SparkSession,
    published: Sequence[PublishedRows],
    key: str,
    columns: Sequence[str],
    spec: FeatureSpec,
    engine: Literal["auto", "sql", "arrow"],
) -> pa.Table | DataFrame:
    """Returns the latest row of each key: the row with the largest row_id on the latest day.

    Args:
        spark: the session.
        published: the rows to search. The splits of one day may be given one by one.
        key: the column of the key, such as user_key.
        columns: the features of the result, in addition to `key`.
        spec: the features of the published rows.
        engine: `workflow.engine` of the configuration.

    Returns:
        An Arrow table sorted by key if there are at most ROWS_IN_DRIVER rows, and otherwise a frame. If the
        engine is `sql`, as on GPUs, the result is always a frame of Spark expressions.
    """
    if choose_engine(spark, engine) == "sql":
        return latest_rows(
            [(day.partition.dt, rows_of(spark, day.partition, day.manifest, day.label)) for day in published],
            key,
            columns,
        )
    schema = latest_schema(key, columns, spec)
    files: dict[str, list[str]] = {}
    for day in published:
        files.setdefault(day.partition.dt, []).extend(day.files)
    if sum(day.rows for day in published) <= ROWS_IN_DRIVER:
        return latest_in_days([files[day] for day in sorted(files)], key, schema).select([key, *columns])
    of_files = [(day, path) for day in sorted(files) for path in files[day]]
    return latest_rows([("", _latest_in_tasks(spark, of_files, key, schema))], key, columns)


def latest_rows(days: Sequence[tuple[str, DataFrame]], key: str, columns: Sequence[str]) -> DataFrame:
    """Returns the latest row of each key: the row with the largest row_id on the latest day.

    Args:
        days: pairs of a date and a frame of rows of this date. The frames have the columns `key`, row_id and
            `columns`. A frame that has the column `_dt` (the date of each row) may contain several days.
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


def _latest_in_tasks(
    spark: SparkSession, of_files: Sequence[tuple[str, str]], key: str, schema: pa.Schema
) -> DataFrame:
    """Returns the latest row of each key in each file, with the column `_dt`. One task reads one file.

    Spark's workers reduce the rows of a file before Spark sees them. This is much faster than an aggregation
    of all rows, because Spark sorts for an aggregation of structs.

    Args:
        spark: the session.
        of_files: pairs of a date and the path of a file with rows of this date.
        key: the column of the key.
        schema: the result of `latest_schema`.
    """
    sent = tuple(of_files)

    def latest_of(index: int) -> Iterator[pa.RecordBatch]:
        day, path = sent[index]
        rows = latest_in_file(path, key, schema)
        yield from rows.append_column(_DAY, pa.array([day] * len(rows), pa.string())).to_batches()

    columns = spark_types(schema.append(pa.field(_DAY, pa.string())))
    return run_tasks(spark, len(sent), latest_of, columns)
