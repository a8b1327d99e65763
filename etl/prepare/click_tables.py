"""The table `last_clicks` of a lake without Spark: publishes missing days, and reads the clicks before a day.

The partitions equal those of etl/spark/last_clicks.py: the same rows in the same order, and manifests with
the same digest. So a lake may get partitions from both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from conf.types import History
from etl.prepare.good_rows import good_rows_of
from etl.prepare.histories import ITEMS, TIMES, lists_of_clicks, merge_days, recent_clicks
from etl.raw.click_days import click_days
from etl.raw.files import RawFiles
from etl.workflow.feature_plan import Plan
from spark.workers import Workers
from storage import file_io
from storage.feature_spec import EVENT_TIME, ITEM_KEY, LABEL, ROW_ID, USER_KEY
from storage.manifest import Manifest, combined_digest, data_files
from storage.parquet_files import errors_of_file
from storage.paths import Lake, Partition
from storage.publish import Rules, new_attempt, own_path, publish_files

_STORED = {USER_KEY: pa.string(), ITEMS: pa.list_(pa.string()), TIMES: pa.list_(pa.int64())}
# Clicks that a day's parts may have in memory before they are reduced to the last ones of each user.
_MERGE_CLICKS = 2_000_000


@dataclass(frozen=True)
class ClickFiles:
    """The published clicks before a day. Tasks can read them: the object can be pickled.

    Attributes:
        days: for each day, oldest first, the paths of its files.
        columns: the columns of the files: user_key, items and, if the log has them, times.
        length: largest number of clicks of a user.
    """

    days: tuple[tuple[str, ...], ...]
    columns: tuple[str, ...]
    length: int

    def read(self, users: pa.Array | None = None) -> pa.Table:
        """Returns the last clicks of users with a click, of one user per row: user_key, items and times.

        The columns are those of etl.prepare.histories.merge_days.

        Args:
            users: the keys of the users to read (string, or a dictionary of strings); None for all users.

        Raises:
            DataError, InfrastructureError: see storage.parquet_files.errors_of_file.
        """
        keys = None if users is None else users.cast(pa.string()).unique()
        # The files of one day have different users, so they may be merged like days.
        tables = [self._read_file(path, keys) for day in self.days for path in day]
        if tables:
            return merge_days(tables, self.length)
        return lists_of_clicks(clicks_of_parts(iter(()), self.length, timed=TIMES in self.columns))

    def _read_file(self, path: str, users: pa.Array | None) -> pa.Table:
        files, inner = file_io.filesystem(path)
        with errors_of_file(path, "run build_features again"), files.open_input_file(inner) as source:
            parquet = pq.ParquetFile(source, read_dictionary=[f"{ITEMS}.list.element"])
            rows = parquet.read(columns=list(self.columns))
        return rows if users is None else rows.filter(pc.is_in(rows.column(USER_KEY), value_set=users))


@dataclass(frozen=True)
class ClickTables:
    """Reads the clicks before a day of a log that is stored by day, and publishes missing partitions.

    A day counts if it has a raw log, or if its partition was published before its raw log was deleted. The
    raw log of a published day is not read again.

    Attributes:
        plan, history: the plan of the run, and the section `history`.
        lake: the lake.
        rows_of: returns the good rows of a day in any number of tables, in any order: user_key, item_key,
            label, row_id and, if the log has them, event_time. Rows with label 0 may be missing.
    """

    plan: Plan
    history: History
    lake: Lake
    rows_of: Callable[[RawFiles], Iterator[pa.Table]]

    def before(self, day: str, users: pa.Array | None = None) -> pa.Table | None:
        """Returns the last clicks on the `history.days` days before `day`, with one row per user.

        The columns are user_key, items and, if the log has them, times (etl/prepare/histories.py). Returns
        None if no day counts.

        Args:
            day: an ISO date.
            users: the keys of the users to read; None for all users.
        """
        files = self.files_before(day)
        return None if files is None else files.read(users)

    def files_before(self, day: str) -> ClickFiles | None:
        """Returns the files that `before` reads. None if no day counts.

        Call this in the driver, and `read` in tasks, which must not publish.
        """
        manifests = self._days(day)
        if not manifests:
            return None
        table = self.lake.last_clicks
        paths = (data_files(table.partition(manifest.partition), manifest) for manifest in manifests)
        columns = (USER_KEY, ITEMS, *((TIMES,) if self.plan.config.log.event_time else ()))
        return ClickFiles(tuple(tuple(files) for files in paths), columns, self.history.length)

    def digest_before(self, day: str) -> str:
        """Returns a digest of everything that `before` reads."""
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


def click_tables(workers: Workers, plan: Plan, lake: Lake) -> ClickTables | None:
    """Returns what reads the clicks of earlier days, as etl.spark.prepared_rows.clicks_before does in Spark.

    Returns None if there are no histories, or if the log is one table.
    """
    if plan.config.history is None or plan.is_divided:
        return None
    return ClickTables(plan, plan.config.history, lake, partial(clicks_of_log, workers, plan))


def clicks_of_log(workers: Workers, plan: Plan, raw: RawFiles) -> Iterator[pa.Table]:
    """Yields the clicks among the good rows of a day's log, with the columns of `ClickTables.rows_of`."""
    times = [EVENT_TIME] if plan.config.log.event_time else []
    return good_rows_of(workers, plan, raw, [USER_KEY, ITEM_KEY, LABEL, ROW_ID, *times], only_clicks=True)


def clicks_of_parts(parts: Iterator[pa.Table], length: int, *, timed: bool) -> pa.Table:
    """Returns the last `length` clicks of each user (etl.prepare.histories.recent_clicks) of rows in parts.

    Args:
        parts: tables of rows in any order. The rows of a user may be in several of them.
        length: largest number of clicks of a user.
        timed: whether the rows have event_time.
    """
    strings = [(USER_KEY, pa.string()), (ITEM_KEY, pa.string())]
    numbers = [(ROW_ID, pa.int64()), *([(EVENT_TIME, pa.int64())] if timed else [])]
    merged = recent_clicks(pa.schema([*strings, *numbers]).empty_table(), length)
    waiting: list[pa.Table] = []
    for part in parts:
        waiting.append(recent_clicks(part, length))
        # Each merge reads all clicks, so it waits until there are twice as many.
        if sum(map(len, waiting)) > max(_MERGE_CLICKS, len(merged)):
            merged, waiting = recent_clicks(pa.concat_tables([merged, *waiting]), length), []
    return recent_clicks(pa.concat_tables([merged, *waiting]), length) if waiting else merged


def _write(clicks: pa.Table, partition: Partition, row_group_rows: int) -> list[str]:
    """Writes one row per user, sorted by user_key, to files of at most `row_group_rows` rows.

    Only the strings of one file are in memory at a time. Returns the paths of the files relative to the
    partition. A table without rows makes one file.
    """
    order = pc.sort_indices(clicks.column(USER_KEY))
    count = max(1, -(-len(clicks) // row_group_rows))
    schema = pa.schema([(name, _STORED[name]) for name in clicks.column_names])
    attempt, written = new_attempt(partition), []
    for index in range(count):
        first, last = len(clicks) * index // count, len(clicks) * (index + 1) // count
        rows = clicks.take(order.slice(first, last - first)).cast(schema)
        name = own_path(f"{attempt}/part-{index:05d}.parquet")
        files, inner = file_io.filesystem(partition.file(name))
        if file_io.is_local(partition.file(name)):
            files.create_dir(inner.rsplit("/", 1)[0], recursive=True)
        with files.open_output_stream(inner) as sink:
            pq.write_table(rows, sink, compression="zstd", row_group_size=row_group_rows)
        written.append(name)
    return written
