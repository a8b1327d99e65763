"""Opens the published tables of a workflow version: vocabularies, statistics by key, external tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.lazy_imports import F
from etl.native.distinct_values import Lookup
from etl.native.mapped_files import open_keyed, open_vocabulary
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths, Partition
from storage.publish import rows_of
from storage.read_parquet import read_file, read_where

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VOCABULARY = "vocabulary"
RARE = "rare"
_ENTRIES = pa.schema([("column", pa.string()), ("id", pa.int32()), ("value", pa.string())])


def workflow_table(lake: LakePaths, version: str, name: str) -> Partition:
    """Returns the partition in which one table of a workflow version is stored.

    `name` is `vocabulary`, `rare` (the values that are too rare for an id), or the name of a step's table.
    """
    return Partition(f"workflow/{version}", name, f"{lake.workflow(version)}/{name}", 3, lake.recorder)


def vocabulary_key(name: str) -> str:
    """Returns the key under which `Tables.rows` has the number of values of a vocabulary."""
    return f"{VOCABULARY}/{name}"


@dataclass(frozen=True)
class LocalTables:
    """Opens the tables of a workflow version in a Python worker.

    In the engine `arrow`, steps look up values in these tables. The object is small and picklable.

    Attributes:
        files: maps the name of each table to its Parquet files.
        latest: the last training day of the workflow, in days since 1970-01-01.
    """

    files: Mapping[str, tuple[str, ...]]
    latest: int = 0

    def vocabulary(self, name: str, max_age_days: int | None = None) -> tuple[Lookup, np.ndarray]:
        """Returns the `Lookup` of a vocabulary's n values, and an (n,) int32 array with their ids.

        Values are omitted if they were last seen more than `max_age_days` days before the last training day.
        """
        oldest = -(2**31) if max_age_days is None else self.latest - max_age_days
        return open_vocabulary(self.files.get(VOCABULARY, ()), name, oldest)

    @property
    def names(self) -> list[str]:
        """Returns the names of the tables."""
        return list(self.files)

    def entries(self, names: Sequence[str], ids: Sequence[int]) -> pa.Table:
        """Returns the entries (column, id, value) of the vocabularies `names` whose ids are in `ids`.

        Raises:
            DataError: a file does not exist, or is damaged.
        """
        selected = pc.field("column").isin(list(names)) & pc.field("id").isin(list(ids))
        files = self.files.get(VOCABULARY, ())
        return read_where(files, _ENTRIES.names, selected) if files else _ENTRIES.empty_table()

    def parts(self, name: str) -> Iterator[pa.Table]:
        """Yields the rows of a table of the version, file by file.

        Raises:
            DataError: a file does not exist, or is damaged.
        """
        for path in self.files[name]:
            yield read_file(path)

    def keyed(self, name: str) -> tuple[Lookup, pa.Table]:
        """Returns the `Lookup` of a table's column `key`, and the table.

        A table without rows has no columns.
        """
        files = self.files[name]
        return open_keyed(files) if files else (Lookup(pa.array([], pa.string())), pa.table({}))


@dataclass(frozen=True)
class Tables:
    """The tables of a workflow version as Spark frames, which the `sql` engine joins.

    Attributes:
        frames: maps the name of each table to its frame. The table `vocabulary` has the columns `column`,
            `value`, `id`, `count` and `last_seen`. All other tables have a string column `key`, and the
            columns to look up.
        rows: maps the name of each table to its number of rows, and `vocabulary/<name>` to the number of
            values of a vocabulary.
        broadcast_max_rows: maximum number of rows of a table that Spark broadcasts to every task.
        local: the tables of this version for Python workers.
    """

    frames: Mapping[str, DataFrame]
    rows: Mapping[str, int]
    broadcast_max_rows: int
    local: LocalTables

    def vocabulary(self, name: str, max_age_days: int | None = None) -> DataFrame:
        """Returns a frame with the columns `value` and `id` of one vocabulary. A small frame is broadcast.

        Values are omitted if they were last seen more than `max_age_days` days before the last training day.
        """
        entries = self.frames[VOCABULARY].where(F.col("column") == name)
        if max_age_days is not None:
            entries = entries.where(F.col("last_seen") >= self.local.latest - max_age_days)
        return self._sized(entries.select("value", "id"), vocabulary_key(name))

    def keyed(self, name: str) -> DataFrame:
        """Returns the frame of a table with a column `key`. A small frame is broadcast."""
        return self._sized(self.frames[name], name)

    def _sized(self, lookup: DataFrame, name: str) -> DataFrame:
        small = self.rows.get(name, 0) <= self.broadcast_max_rows
        return F.broadcast(lookup) if small else lookup


def open_tables(
    spark: SparkSession,
    lake: LakePaths,
    version: str,
    names: Sequence[str],
    rows: Mapping[str, int],
    broadcast_max_rows: int,
    latest: int,
) -> Tables:
    """Opens the named tables of a workflow version.

    Spark keeps tables of at most `broadcast_max_rows` rows in memory.
    """
    frames, files = {}, {}
    for name in names:
        partition = workflow_table(lake, version, name)
        manifest = read_manifest(partition)
        files[name] = tuple(data_files(partition, manifest))
        frame = rows_of(spark, partition, manifest)
        frames[name] = frame.persist() if rows.get(name, 0) <= broadcast_max_rows else frame
    return Tables(frames, dict(rows), broadcast_max_rows, LocalTables(files, latest))
