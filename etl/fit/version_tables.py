"""The published tables of a new workflow version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from conf.errors import InfrastructureError
from etl.ops.keyed import KEY
from etl.ops.tables import RARE, LocalTables, Tables, open_tables, workflow_table
from etl.ops.training_statistics import GroupParts, concat_groups, merge_groups
from etl.workflow.fitted_workflow import LocalWorkflow, save_workflow, table_sizes, workflow_exists
from storage import file_io
from storage.file_digests import named, new_file, open_file, split_name
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths, Partition
from storage.publish import new_attempt, own_path, publish, publish_files, read_published
from storage.read_parquet import arrow_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Number of bytes that are read at once while a file is copied.
_COPIED_BYTES = 16 * 2**20


class VersionTables:
    """Publishes the tables of a new workflow version, and opens tables that it has already published.

    Attributes:
        rows: maps the name of each published table to the number of its rows.
        vocabularies: maps the name of each vocabulary to its size and counts
            (etl.fit.row_statistics.vocabulary_facts).
    """

    def __init__(self, lake: LakePaths, version: str, parent: str | None, row_group_rows: int) -> None:
        """Starts without any published table. `parent` is the workflow version that is extended, or None."""
        self._lake, self._version, self.parent = lake, version, parent
        self.row_group_rows = row_group_rows
        self.rows: dict[str, int] = {}
        self.vocabularies: dict[str, dict[str, int]] = {}

    def partition(self, name: str) -> Partition:
        """Returns the partition in which a table of the new version is published."""
        return workflow_table(self._lake, self._version, name)

    def publish_frame(self, table: DataFrame, name: str, sort_by: Sequence[str] = (KEY,)) -> None:
        """Publishes a frame as the table `name`."""
        manifest = publish(
            table,
            self.partition(name),
            inputs={"version": self._version},
            row_group_rows=self.row_group_rows,
            sort_by=list(sort_by),
        )
        self.rows[name] = manifest.rows

    def publish_files(self, files: Sequence[str], name: str) -> None:
        """Publishes files, which tasks have written to the partition's folder, as the table `name`."""
        manifest = publish_files(
            self.partition(name), dict.fromkeys(files), inputs={"version": self._version}
        )
        self.rows[name] = manifest.rows

    def publish_table(self, table: pa.Table, name: str) -> None:
        """Publishes an Arrow table as the table `name`. The rows keep their order."""
        partition = self.partition(name)
        attempt = new_attempt(partition)
        path = partition.file(f"{attempt}/part-00000.parquet")
        written = write_sorted(path, table, self.row_group_rows)
        self.publish_files([f"{attempt}/{written.rsplit('/', 1)[1]}"], name)

    def copy_from_parent(self, name: str) -> None:
        """Publishes a copy of the parent version's table in the new version, unless it is already there."""
        if name in self.rows:
            return
        manifest = read_manifest(self._of_parent(name))
        partition = self.partition(name)
        attempt = new_attempt(partition)
        copies = []
        for index, path in enumerate(data_files(self._of_parent(name), manifest)):
            copy = f"{attempt}/part-{index:05d}.parquet"
            copies.append(named(copy, _copy(path, partition.file(copy))))
        if copies:
            self.publish_files(copies, name)
        else:
            columns = [(column, arrow_type(kind)) for column, kind in manifest.schema]
            self.publish_table(pa.schema(columns).empty_table(), name)

    def local(self, latest: int) -> LocalTables:
        """Opens the published tables of the new version for processes without Spark.

        The table of rare values is left out.

        `latest` is the last day that the workflow version includes, in days since 1970-01-01.
        """
        partitions = {name: self.partition(name) for name in self.rows if name != RARE}
        return LocalTables(
            {name: tuple(data_files(table, read_manifest(table))) for name, table in partitions.items()},
            latest,
        )

    def read_parent(self, spark: SparkSession, name: str) -> DataFrame:
        """Returns a table of the parent version as a frame."""
        return read_published(spark, self._of_parent(name))

    def parent_files(self, name: str) -> tuple[str, ...]:
        """Returns the paths of the files of a parent's table; empty if there is no parent."""
        if self.parent is None:
            return ()
        table = self._of_parent(name)
        return tuple(data_files(table, read_manifest(table)))

    def open(self, spark: SparkSession, broadcast_max_rows: int, latest: int) -> Tables:
        """Opens the published tables of the new version for Spark, except the table of rare values.

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
        """Records the sizes and counts of published vocabularies."""
        self.vocabularies |= {name: dict(values) for name, values in facts.items()}

    def read(self, spark: SparkSession, name: str) -> DataFrame:
        """Returns a published table of the new version as a frame."""
        return read_published(spark, self.partition(name))

    def _of_parent(self, name: str) -> Partition:
        if self.parent is None:
            raise ValueError(f"internal error, please report: no parent workflow to read {name} from")
        return workflow_table(self._lake, self.parent, name)


def _copy(source: str, target: str) -> str:
    """Copies a file to a new path, which may be on another storage. Returns the digest of the copy."""
    with open_file(source) as opened, new_file(target) as file:
        while part := opened.read(_COPIED_BYTES):
            file.sink.write(part)
    return file.digest


# The code below writes files with statistics by key. Each task first writes partial statistics of its rows.
# Then the partial statistics of each range of keys are merged by one task.
#
# Each task sorts the keys of its rows. Ranges of keys are chosen from a sample of the keys of all tasks. So
# the files of the merged ranges form one sorted table, and no task needs all keys.

# Approximate number of rows in a range of keys. One task merges the rows of a range.
_RANGE_ROWS = 2_000_000

# Number of rows of a row group in a file of partial statistics. A task reads only the row groups with keys of
# its range.
_GROUP_ROWS = 65_536

# Approximate number of keys that are sampled from each file of partial statistics.
_SAMPLED_KEYS = 512

# A task buffers at least this number of rows of partial statistics before it merges them.
_HELD_ROWS = 1_000_000


@dataclass(frozen=True)
class KeyRange:
    """The keys in [first, end), in the order of their UTF-8 bytes. None means no limit."""

    first: str | None = None
    end: str | None = None

    def overlaps(self, least: str, most: str) -> bool:
        """Returns whether this range may contain a key between `least` and `most`, inclusive."""
        # Python compares strings by code points. UTF-8 bytes have the same order.
        return (self.first is None or most >= self.first) and (self.end is None or least < self.end)

    def select(self, table: pa.Table) -> pa.Table:
        """Returns the rows of a table whose key is in this range."""
        if self.first is not None:
            table = table.filter(pc.greater_equal(table[KEY], self.first))
        return table if self.end is None else table.filter(pc.less(table[KEY], self.end))


class PartsByKey:
    """Merges the partial statistics of one step from all batches of a task."""

    def __init__(self) -> None:
        self._keys: list[pa.Array] = []
        self._parts: list[GroupParts] = []
        self._merged_rows = 0

    def add(self, keys: pa.Array, parts: GroupParts) -> None:
        """Adds partial statistics of some rows. `keys` are their distinct keys, of shape (parts.size,)."""
        self._keys.append(keys)
        self._parts.append(parts)
        if sum(map(len, self._keys)) > 2 * self._merged_rows + _HELD_ROWS:
            self.result()

    def result(self) -> tuple[pa.Array, GroupParts] | None:
        """Returns the keys, ascending, and their merged statistics; None if no rows were added."""
        if not self._keys:
            return None
        keys, parts = merge_groups(self._keys, self._parts)
        self._keys, self._parts, self._merged_rows = [keys], [parts], len(keys)
        return keys, parts


def write_parts(path: str, keys: pa.Array, parts: GroupParts) -> dict[str, Any]:
    """Writes a file of partial statistics. Returns its path, its number of rows and a sample of its keys."""
    table = pa.table({KEY: keys, **parts.to_arrays()})
    written, _ = split_name(write_sorted(path, table, _GROUP_ROWS))
    step = max(1, len(keys) // _SAMPLED_KEYS)
    return {"path": written, "rows": len(keys), "sample": keys[step // 2 :: step].to_pylist()}


def write_sorted(path: str, table: pa.Table, row_group_rows: int) -> str:
    """Writes a table to a new Parquet file. Returns its name (storage.file_digests.named).

    The name is different for each attempt.
    """
    with new_file(own_path(path)) as file:
        pq.write_table(table, file.sink, compression="zstd", row_group_size=row_group_rows)
    return file.name


def choose_ranges(files: Sequence[Mapping[str, Any]]) -> list[KeyRange]:
    """Divides the keys into ascending ranges with about equally many rows.

    `files` are results of `write_parts`.
    """
    rows = sum(file["rows"] for file in files)
    wanted = -(-rows // _RANGE_ROWS)
    sampled = [(key, file["rows"] / len(file["sample"])) for file in files for key in file["sample"]]
    if wanted <= 1:
        return [KeyRange()]
    sampled.sort()
    until = np.cumsum([weight for _, weight in sampled])
    at = np.searchsorted(until, until[-1] * np.arange(1, wanted) / wanted)
    bounds = sorted({sampled[index][0] for index in at.tolist()})
    return [KeyRange(first, end) for first, end in pairwise([None, *bounds, None])]


def merge_parts(paths: Sequence[str], keys: KeyRange) -> tuple[pa.Array, GroupParts] | None:
    """Returns (ascending keys, merged statistics) of a range of keys; None if the range has no key."""
    merged = PartsByKey()
    for path in paths:
        for table in _read_range(path, keys):
            merged.add(table[KEY].combine_chunks(), GroupParts.from_table(table))
    return merged.result()


def _read_range(path: str, keys: KeyRange) -> Iterator[pa.Table]:
    files, inner = file_io.filesystem(path)
    with files.open_input_file(inner) as source:
        parquet = pq.ParquetFile(source)
        column = parquet.schema_arrow.get_field_index(KEY)
        groups = []
        for index in range(parquet.metadata.num_row_groups):
            statistics = parquet.metadata.row_group(index).column(column).statistics
            if (
                statistics is None
                or not statistics.has_min_max
                or keys.overlaps(statistics.min, statistics.max)
            ):
                groups.append(index)
        for start in range(0, len(groups), 16):
            table = keys.select(parquet.read_row_groups(groups[start : start + 16], use_threads=False))
            if len(table):
                yield table


def one_group(parts: Sequence[GroupParts]) -> GroupParts:
    """Merges one or more partial statistics of a single group."""
    together = concat_groups(parts)
    return together.regrouped(np.zeros(together.size, np.int64), 1)


def parts_to_json(parts: GroupParts) -> dict[str, Any]:
    """Returns the partial statistics of one group as JSON values."""
    return {
        "sums": {name: values[0].tolist() for name, values in parts.sums.items()},
        "least": {name: float(values[0]) for name, values in parts.least.items()},
        "most": {name: float(values[0]) for name, values in parts.most.items()},
    }


def parts_from_json(stored: Mapping[str, Any]) -> GroupParts:
    """Returns the partial statistics of one group from the result of `parts_to_json`."""
    return GroupParts(
        1,
        {name: np.array([values], np.int64) for name, values in stored["sums"].items()},
        {name: np.array([value], np.float64) for name, value in stored["least"].items()},
        {name: np.array([value], np.float64) for name, value in stored["most"].items()},
    )


# The functions below write a fitted workflow and its tables to a folder, in the format of a data lake.

# `save_fitted` writes this for a table without rows, because `publish_files` needs a file with the columns.
_WITHOUT_ROWS = pa.table({KEY: pa.array([], pa.string())})


def save_fitted(lake: LakePaths, workflow: LocalWorkflow) -> None:
    """Publishes the tables of a workflow and then the workflow, unless this version already exists.

    Raises:
        DataError: a file of the workflow does not exist, or is damaged.
        InfrastructureError: the storage cannot be written.
    """
    if workflow_exists(lake, workflow.version):
        return
    rows = {}
    for name in workflow.local.names:
        partition = workflow_table(lake, workflow.version, name)
        attempt = new_attempt(partition)
        files = [
            f"{attempt}/{_write(partition.file(f'{attempt}/part-{index:05d}.parquet'), part)}"
            for index, part in enumerate([*workflow.local.parts(name)] or [_WITHOUT_ROWS])
        ]
        rows[name] = publish_files(partition, dict.fromkeys(files), inputs={"version": workflow.version}).rows
    save_workflow(lake, workflow, rows)


def _write(path: str, part: pa.Table) -> str:
    """Writes one file.

    Returns the file's name without folders; it contains a digest (storage.file_digests.named).

    Raises:
        InfrastructureError: the file cannot be written.
    """
    path = own_path(path)
    try:
        with new_file(path) as file:
            pq.write_table(part, file.sink, compression="zstd")
    except OSError as error:
        raise InfrastructureError(
            f"cannot write {path}: {error}", "check the path of the folder, disk space and permissions"
        ) from error
    return file.name.rsplit("/", 1)[1]
