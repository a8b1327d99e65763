"""The published tables of a new workflow version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from etl.fit.key_parts import write_sorted
from etl.ops.keyed import KEY
from etl.ops.tables import RARE, LocalTables, Tables, open_tables, workflow_table
from etl.workflow.local_workflow import table_sizes
from storage import file_io
from storage.manifest import data_files, read_manifest
from storage.parquet_files import arrow_type
from storage.paths import Lake, Partition
from storage.publish import new_attempt, publish, publish_files, read_published

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Bytes of a file that are in memory while the file is copied.
_COPIED_BYTES = 16 * 2**20


class VersionTables:
    """Publishes the tables of a new workflow version, and opens the tables that are published so far.

    Attributes:
        rows: maps the name of each published table to the number of its rows.
        vocabularies: maps the name of each vocabulary to its facts (etl.statistics.vocabulary).
    """

    def __init__(self, lake: Lake, version: str, parent: str | None, row_group_rows: int) -> None:
        """Creates an object without tables. `parent` is the workflow version that is extended, or None."""
        self._lake, self._version, self.parent = lake, version, parent
        self.row_group_rows = row_group_rows
        self.rows: dict[str, int] = {}
        self.vocabularies: dict[str, dict[str, int]] = {}

    def partition(self, name: str) -> Partition:
        """Returns the partition in which a table of the new version is published."""
        return workflow_table(self._lake, self._version, name)

    def publish_frame(self, table: DataFrame, name: str, sort_by: Sequence[str] = (KEY,)) -> None:
        """Publishes a frame as the named table."""
        manifest = publish(
            table,
            self.partition(name),
            inputs={"version": self._version},
            row_group_rows=self.row_group_rows,
            sort_by=list(sort_by),
        )
        self.rows[name] = manifest.rows

    def publish_files(self, files: Sequence[str], name: str) -> None:
        """Publishes files that tasks wrote below the partition as the named table."""
        manifest = publish_files(
            self.partition(name), dict.fromkeys(files), inputs={"version": self._version}
        )
        self.rows[name] = manifest.rows

    def publish_table(self, table: pa.Table, name: str) -> None:
        """Publishes an Arrow table as the named table. Its rows keep their order."""
        partition = self.partition(name)
        attempt = new_attempt(partition)
        path = partition.file(f"{attempt}/part-00000.parquet")
        written = write_sorted(path, table, self.row_group_rows)
        self.publish_files([f"{attempt}/{written.rsplit('/', 1)[1]}"], name)

    def copy_from_parent(self, name: str) -> None:
        """Publishes a copy of the parent's table in the new version, unless it is already published there."""
        if name in self.rows:
            return
        manifest = read_manifest(self._of_parent(name))
        partition = self.partition(name)
        attempt = new_attempt(partition)
        copies = []
        for index, path in enumerate(data_files(self._of_parent(name), manifest)):
            copies.append(f"{attempt}/part-{index:05d}.parquet")
            _copy(path, partition.file(copies[-1]))
        if copies:
            self.publish_files(copies, name)
        else:
            columns = [(column, arrow_type(kind)) for column, kind in manifest.schema]
            self.publish_table(pa.schema(columns).empty_table(), name)

    def local(self, latest: int) -> LocalTables:
        """Opens the tables published so far, without rare values, for processes without Spark.

        `latest` is the last day that the workflow version includes, in days since 1970-01-01.
        """
        partitions = {name: self.partition(name) for name in self.rows if name != RARE}
        return LocalTables(
            {name: tuple(data_files(table, read_manifest(table))) for name, table in partitions.items()},
            latest,
        )

    def read_parent(self, spark: SparkSession, name: str) -> DataFrame:
        """Reads a table of the parent version as a frame."""
        return read_published(spark, self._of_parent(name))

    def parent_files(self, name: str) -> tuple[str, ...]:
        """Returns the files of a table of the parent version; empty if there is no parent."""
        if self.parent is None:
            return ()
        table = self._of_parent(name)
        return tuple(data_files(table, read_manifest(table)))

    def open(self, spark: SparkSession, broadcast_max_rows: int, latest: int) -> Tables:
        """Opens the tables published so far, without rare values.

        Args:
            broadcast_max_rows: maximum number of rows of a table that Spark sends to every task.
            latest: the last day that the workflow version includes, in days since 1970-01-01.
        """
        if not self.rows:
            return Tables({}, {}, broadcast_max_rows, LocalTables({}, latest))
        names = [name for name in self.rows if name != RARE]
        sizes = table_sizes(self.rows, self.vocabularies)
        return open_tables(spark, self._lake, self._version, names, sizes, broadcast_max_rows, latest)

    def add_vocabularies(self, facts: Mapping[str, Mapping[str, int]]) -> None:
        """Records the facts of vocabularies that were published."""
        self.vocabularies |= {name: dict(values) for name, values in facts.items()}

    def read(self, spark: SparkSession, name: str) -> DataFrame:
        """Reads a table that was published for the new version as a frame."""
        return read_published(spark, self.partition(name))

    def _of_parent(self, name: str) -> Partition:
        if self.parent is None:
            raise ValueError(f"internal error, please report: no parent workflow to read {name} from")
        return workflow_table(self._lake, self.parent, name)


def _copy(source: str, target: str) -> None:
    """Copies a file to a new path, possibly on another storage."""
    files, inner = file_io.filesystem(source)
    target_files, target_inner = file_io.filesystem(target)
    if file_io.is_local(target):
        target_files.create_dir(target_inner.rsplit("/", 1)[0], recursive=True)
    with files.open_input_stream(inner) as opened, target_files.open_output_stream(target_inner) as sink:
        while part := opened.read(_COPIED_BYTES):
            sink.write(part)
