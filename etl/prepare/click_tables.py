"""Publishes missing days of a lake's table `last_clicks`, and reads the clicks before a day, without Spark.

etl/spark/frame_passes.py publishes equal partitions, with the same rows in the same order, and the same
digest in the manifest. So both modules may write partitions of the same lake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from conf.types import History
from etl.prepare.histories import ITEMS, TIMES, lists_of_clicks, merge_days, recent_clicks
from etl.raw.file_splits import FileSplit
from etl.raw.files import RawFiles
from etl.raw.layout_digest import click_days
from etl.text.parse_block import FileLayout, columns_to_parse, layout_of_days, plain, read_split
from etl.workflow.feature_plan import FeaturePlan
from spark.workers import Workers
from storage.feature_spec import EVENT_TIME, GROUP_KEY, ITEM_KEY, LABEL, ROW_ID, USER_KEY
from storage.file_digests import named, new_file, open_file
from storage.manifest import Manifest, combined_digest, data_files
from storage.paths import LakePaths, Partition
from storage.publish import Rules, new_attempt, own_path, publish_files
from storage.read_parquet import errors_of_file

_STORED = {USER_KEY: pa.string(), ITEMS: pa.list_(pa.string()), TIMES: pa.list_(pa.int64())}

# If more clicks than this number are in memory, only the last clicks of each user are kept.
_MERGE_CLICKS = 2_000_000


@dataclass(frozen=True)
class ClickFiles:
    """The published clicks before a day. The object can be pickled, so the driver can send it to tasks.

    Attributes:
        days: for each day, oldest first, the paths of its files.
        columns: the columns of the files: user_key, items and, if the log has them, times.
        length: maximum number of clicks to keep for a user.
    """

    days: tuple[tuple[str, ...], ...]
    columns: tuple[str, ...]
    length: int

    def read(self, users: pa.Array | None = None) -> pa.Table:
        """Returns the last clicks of users, with one row for each user with a click.

        The columns are user_key, items and, if the log has times, times (etl.prepare.histories.merge_days).

        Args:
            users: the keys of the users to read (string, or a dictionary of strings); None for all users.

        Raises:
            DataError, InfrastructureError: see storage.read_parquet.errors_of_file.
        """
        keys = None if users is None else users.cast(pa.string()).unique()
        # Each user is in only one file of a day, so all files can be merged as if each were a day of its own.
        tables = [self._read_file(path, keys) for day in self.days for path in day]
        if tables:
            return merge_days(tables, self.length)
        return lists_of_clicks(clicks_of_parts(iter(()), self.length, timed=TIMES in self.columns))

    def _read_file(self, path: str, users: pa.Array | None) -> pa.Table:
        with errors_of_file(path, "run build_features again"), open_file(path) as source:
            parquet = pq.ParquetFile(source, read_dictionary=[f"{ITEMS}.list.element"])
            rows = parquet.read(columns=list(self.columns))
        return rows if users is None else rows.filter(pc.is_in(rows.column(USER_KEY), value_set=users))


@dataclass(frozen=True)
class ClickTables:
    """Reads the clicks before a day, from a log that is stored by day. Publishes partitions that are missing.

    A day is usable if it has a raw log, or if its partition was published before its raw log was deleted. For
    a published day, the raw log is read again only if the log or the settings have changed.

    Attributes:
        plan, history: the plan of the run, and the section `history`.
        lake: data lake with the table `last_clicks`.
        rows_of: function that takes the raw files of a day, and yields its good rows in any number of tables
            and in any order. Their columns are user_key, item_key, label, row_id and, if the log has times,
            event_time. The function may leave out rows with label 0.
    """

    plan: FeaturePlan
    history: History
    lake: LakePaths
    rows_of: Callable[[RawFiles], Iterator[pa.Table]]

    def before(self, day: str, users: pa.Array | None = None) -> pa.Table | None:
        """Returns the last clicks on the `history.days` days before `day`, with one row per user.

        The columns are user_key, items and, if the log has times, times (etl/prepare/histories.py). Returns
        None if no day is usable.

        Args:
            day: an ISO date.
            users: the keys of the users to read; None for all users.
        """
        files = self.files_before(day)
        return None if files is None else files.read(users)

    def files_before(self, day: str) -> ClickFiles | None:
        """Returns the files that `before` reads; None if no day is usable.

        Call this method in the driver, because tasks must not publish. Call `ClickFiles.read` in tasks.
        """
        manifests = self._days(day)
        if not manifests:
            return None
        table = self.lake.last_clicks
        paths = (data_files(table.partition(manifest.partition), manifest) for manifest in manifests)
        columns = (USER_KEY, ITEMS, *((TIMES,) if self.plan.config.log.event_time else ()))
        return ClickFiles(tuple(tuple(files) for files in paths), columns, self.history.length)

    def digest_before(self, day: str) -> str:
        """Returns a digest of everything that the method `before` reads for this day."""
        return combined_digest((manifest.digest for manifest in self._days(day)), self.lake.recorder)

    def _days(self, day: str) -> list[Manifest]:
        return click_days(self.plan.config, self.history, self.lake, day, self._publish)

    def _publish(self, raw: RawFiles, partition: Partition, inputs: dict[str, str]) -> Manifest:
        timed = self.plan.config.log.event_time is not None
        clicks = clicks_of_parts(self.rows_of(raw), self.history.length, timed=timed)
        files = _write(lists_of_clicks(clicks), partition, self.plan.config.output.row_group_rows)
        return publish_files(
            partition,
            dict.fromkeys(files),
            inputs=inputs,
            rules=Rules([USER_KEY]),
            grace_hours=self.plan.config.output.grace_hours,
        )


def click_tables(workers: Workers, plan: FeaturePlan, lake: LakePaths) -> ClickTables | None:
    """Returns an object that reads the clicks of earlier days.

    Returns None if there are no histories, or if the log is not stored by day. In Spark, `clicks_before` of
    etl.spark.frame_passes does the same.
    """
    if plan.config.history is None or plan.is_divided:
        return None
    return ClickTables(plan, plan.config.history, lake, partial(clicks_of_log, workers, plan))


def clicks_of_log(workers: Workers, plan: FeaturePlan, raw: RawFiles) -> Iterator[pa.Table]:
    """Yields the clicks among the good rows of a day's log, with the columns of `ClickTables.rows_of`."""
    times = [EVENT_TIME] if plan.config.log.event_time else []
    return good_rows_of(workers, plan, raw, [USER_KEY, ITEM_KEY, LABEL, ROW_ID, *times], only_clicks=True)


def clicks_of_parts(parts: Iterator[pa.Table], length: int, *, timed: bool) -> pa.Table:
    """Returns the last `length` clicks of each user in some tables of rows, as `recent_clicks` returns them.

    Args:
        parts: tables of rows in any order. The rows of a user may be in several tables.
        length: maximum number of clicks to keep for a user.
        timed: whether the rows have event_time.
    """
    strings = [(USER_KEY, pa.string()), (ITEM_KEY, pa.string())]
    numbers = [(ROW_ID, pa.int64()), *([(EVENT_TIME, pa.int64())] if timed else [])]
    merged = recent_clicks(pa.schema([*strings, *numbers]).empty_table(), length)
    waiting: list[pa.Table] = []
    for part in parts:
        waiting.append(recent_clicks(part, length))
        # Each merge reads all clicks in memory, so merge only after their number has doubled.
        if sum(map(len, waiting)) > max(_MERGE_CLICKS, len(merged)):
            merged, waiting = recent_clicks(pa.concat_tables([merged, *waiting]), length), []
    return recent_clicks(pa.concat_tables([merged, *waiting]), length) if waiting else merged


def _write(clicks: pa.Table, partition: Partition, row_group_rows: int) -> list[str]:
    """Writes one row per user, sorted by user_key, to files of at most `row_group_rows` rows.

    Only the strings of one file are in memory at a time. Returns the names of the files relative to the
    partition (storage.file_digests.named). If there are no rows, one file without rows is written.
    """
    order = pc.sort_indices(clicks.column(USER_KEY))
    count = max(1, -(-len(clicks) // row_group_rows))
    schema = pa.schema([(name, _STORED[name]) for name in clicks.column_names])
    attempt, written = new_attempt(partition), []
    for index in range(count):
        first, last = len(clicks) * index // count, len(clicks) * (index + 1) // count
        rows = clicks.take(order.slice(first, last - first)).cast(schema)
        name = own_path(f"{attempt}/part-{index:05d}.parquet")
        with new_file(partition.file(name)) as file:
            pq.write_table(rows, file.sink, compression="zstd", row_group_size=row_group_rows)
        written.append(named(name, file.digest))
    return written


# The functions below read the valid rows of a day's raw log as Arrow tables. Python tasks read the file
# splits, without a JVM.

_TASK, _LINES = "_task", "_lines"
_TYPES = {
    USER_KEY: pa.string(),
    ITEM_KEY: pa.string(),
    GROUP_KEY: pa.string(),
    LABEL: pa.float32(),
    EVENT_TIME: pa.int64(),
    ROW_ID: pa.int64(),
}


def good_rows_of(
    workers: Workers, plan: FeaturePlan, raw: RawFiles, columns: Sequence[str], *, only_clicks: bool = False
) -> Iterator[pa.Table]:
    """Yields the good rows of a day's log, in the order of the log, about one block of a file at a time.

    Tasks of `workers` parse the file splits. The rows of erased users are left out.

    Args:
        workers: processes of this machine, because the rows are returned to this process.
        plan, raw: the plan of the run, and the files of the day.
        columns: names of the columns to return. Possible names: user_key, item_key, group_key (string), label
            (float32), event_time (int64, µs) and row_id (int64: the index of the row's line in the day).
        only_clicks: whether to return only the rows with label 1.

    Raises:
        DataError, ConfigError: a file is damaged or lacks a column.
        ValueError: the workers are Spark's.
    """
    layout = layout_of_days(plan, [raw])
    splits = tuple(layout.reader.splits())
    schema = pa.schema(
        [(_TASK, pa.int32()), (_LINES, pa.int64()), *((name, _TYPES[name]) for name in columns)]
    )
    times = plan.config.log.event_time.columns if plan.config.log.event_time else ()
    task = partial(_rows_of, splits, layout, columns_to_parse(layout, times), schema, only_clicks)
    rows = workers.run(len(splits), task, schema)
    if not isinstance(rows, pa.Table):
        raise ValueError("internal error, please report: Spark's workers do not return Arrow tables")
    ends = rows.filter(pc.is_valid(rows.column(_LINES))).select([_TASK, _LINES])
    lines = np.zeros(len(splits), np.int64)
    lines[ends.column(_TASK).to_numpy()] = ends.column(_LINES).to_numpy()
    first_row_id = np.cumsum(lines) - lines
    for batch in rows.to_batches():
        if not len(batch) or batch.column(_LINES)[0].is_valid:
            continue
        table = pa.Table.from_batches([batch])
        if ROW_ID in columns:  # a task does not know how many lines precede its split
            first = pa.scalar(first_row_id[batch.column(_TASK)[0].as_py()], pa.int64())
            position = table.column_names.index(ROW_ID)
            table = table.set_column(position, ROW_ID, pc.add(table.column(ROW_ID), first))
        yield table.select(list(columns))


def _rows_of(
    splits: tuple[FileSplit, ...],
    layout: FileLayout,
    parsed_columns: Sequence[str],
    schema: pa.Schema,
    only_clicks: bool,
    index: int,
) -> Iterator[pa.RecordBatch]:
    """Runs one task: parses one file split. The last batch has one row: the split's number of lines."""
    lines = 0
    for parsed in read_split(splits[index], layout, parsed_columns):
        values = {**parsed.columns, ROW_ID: pa.array(parsed.row_lines + lines, pa.int64())}
        lines += parsed.lines
        if only_clicks:
            clicked = pc.equal(plain(parsed.columns[LABEL]), 1)
            values = {name: values[name].filter(clicked) for name in schema.names if name in values}
        count = len(values[ROW_ID]) if ROW_ID in values else len(next(iter(values.values())))
        arrays = [pa.repeat(pa.scalar(index, pa.int32()), count), pa.nulls(count, pa.int64())]
        arrays += [plain(values[name]).cast(_TYPES[name]) for name in schema.names[2:]]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
    end = {_TASK: index, _LINES: lines}
    yield pa.RecordBatch.from_arrays(
        [pa.array([end.get(field.name)], field.type) for field in schema], schema=schema
    )
