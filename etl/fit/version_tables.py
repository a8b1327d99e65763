"""The published tables of a new workflow version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from etl.ops.keyed import KEY
from etl.ops.tables import RARE, LocalTables, Tables, open_tables, workflow_table
from etl.workflow.local_workflow import table_sizes
from spark.workers import Workers
from storage.manifest import data_files, read_manifest
from storage.paths import Lake, Partition
from storage.publish import publish, publish_files, read_published


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

    def copy_from_parent(self, workers: Workers, name: str) -> None:
        """Publishes a copy of the parent's table in the new version, unless it is already published there."""
        if name not in self.rows:
            self.publish_frame(self.read_parent(workers.spark, name), name)

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
