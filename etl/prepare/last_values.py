"""Joins rows with the last values that events of their item had on earlier days (section `last_values`).

The table `last_values` of a lake has a partition for each day of the log. It is computed from the events of
this day alone, and has one row per item with a value. The columns are item_key, the last value of each column
(`last_price`) and, if the log has times, the time of the event that has this value (`_time_last_price`, µs).
The rows of a day are joined with the partitions of the `days` days before it. So if the log of a day changes,
the values of the days after it change too. Older partitions have no effect on these rows.

The last value is that of the event with the latest time. Events with equal times, and the events of a log
without times, are ordered by day, and then by their position in the log. Nulls are skipped, in each column
separately. Each task returns only the last values of its file split, so few rows are merged. Arrow tables and
Spark frames give equal partitions and equal values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.lazy_imports import F
from conf.types import Config, LastValues
from etl.ops.arrays import codes_of, plain, whole
from etl.prepare.attributes import attribute_rows
from etl.raw.file_splits import FileSplit
from etl.raw.files import RawFiles
from etl.raw.layout_digest import VALUES_METHOD, StoredDays
from etl.raw.row_rules import bounds_of_day
from etl.raw.text_values import ARROW_TYPES
from etl.text.parse_block import FileLayout, ParsedBlock, columns_to_parse, layout_of_days, read_split
from etl.workflow.feature_plan import FeaturePlan
from spark.rows import frame_of, spark_types
from spark.workers import LocalWorkers, Workers
from storage.feature_spec import EVENT_TIME, ITEM_KEY
from storage.manifest import Manifest, combined_digest, data_files
from storage.paths import LakePaths, Partition
from storage.publish import Rules, publish_rows, rows_of
from storage.read_parquet import read_file

if TYPE_CHECKING:  # Python workers import this module, but they do not need pyspark.
    from pyspark.sql import Column, DataFrame

    from spark.rows import Rows

# Each column of values has two more columns, with these prefixes: the time of the value's event, and the
# place of the event, a number that orders events with equal times. Names of raw columns cannot begin with an
# underscore.
_TIME, _PLACE = "_time_", "_place_"

# Each file split has fewer lines than this. The place of an event is this number times the index of its
# split, plus the index of its line. So places are in the order of the log.
_LINES_OF_SPLIT = 2**40


@dataclass(frozen=True)
class ValueTables:
    """Reads the last values before a day. Publishes partitions of the table `last_values` that are missing.

    Values of a day are used if the day has a raw log, or if its partition was published before the raw log
    was deleted.
    """

    workers: Workers
    plan: FeaturePlan
    settings: LastValues
    lake: LakePaths

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of the columns that the section adds, such as `last_price`."""
        return tuple(self.settings.new_columns)

    @property
    def timed(self) -> bool:
        """Returns whether the log has event times."""
        return self.plan.config.log.event_time is not None

    def before(self, day: str, *, as_frame: bool = False) -> Rows:
        """Returns the last values on the `days` days before `day`, one row per item with a value.

        The columns are item_key, `names` and, if the log has times, the time of each value. The result is a
        table if `workers` are processes of this machine and `as_frame` is false. Otherwise it is a frame.
        """
        manifests = self._days(day)
        if isinstance(self.workers, LocalWorkers) and not as_frame:
            return self._without_places(self._merged_tables(manifests))
        return self._without_places(self._merged_frames(manifests))

    def digest_before(self, day: str) -> str:
        """Returns a digest of everything that the method `before` reads for this day."""
        return combined_digest((manifest.digest for manifest in self._days(day)), self.lake.recorder)

    def _days(self, day: str) -> list[Manifest]:
        config = self.plan.config
        stored = StoredDays(
            self.lake.last_values(config.name),
            self.settings.days,
            ("values", f"{VALUES_METHOD}, {', '.join(self.settings.columns)}"),
            ("last values", "columns of last_values"),
        )
        return stored.before(config, day, self._publish)

    def _schema(self) -> pa.Schema:
        types = self.plan.config.log.types
        fields = {ITEM_KEY: pa.string()}
        for name, column in self.settings.new_columns.items():
            fields |= {name: ARROW_TYPES[types[column]], _TIME + name: pa.int64(), _PLACE + name: pa.int64()}
        return pa.schema(list(fields.items()))

    def _without_places(self, rows: Rows) -> Rows:
        """Leaves out columns that only order events with equal times, and times if the log has none."""
        times = [_TIME + name for name in self.names] if self.timed else []
        kept = [ITEM_KEY, *self.names, *times]
        return rows.select(kept) if isinstance(rows, pa.Table) else rows.select(*map(_column, kept))

    def _publish(self, raw: RawFiles, partition: Partition, inputs: dict[str, str]) -> Manifest:
        config = self.plan.config
        layout = layout_of_days(self.plan, [raw])
        splits = tuple(layout.reader.splits())
        parsed = columns_to_parse(layout, self.settings.columns)
        of_day = _DayColumns(self.settings.new_columns, self._schema(), _end_of_day(config, raw.dt))
        rows = self.workers.run(
            len(splits), partial(_values_of, splits, layout, parsed, of_day), of_day.schema
        )
        last = (
            last_of_table(rows, self.names) if isinstance(rows, pa.Table) else last_of_frame(rows, self.names)
        )
        return publish_rows(
            self._without_places(last),
            partition,
            inputs=inputs,
            row_group_rows=config.output.row_group_rows,
            rules=Rules([ITEM_KEY]),
            sort_by=ITEM_KEY,
            grace_hours=config.output.grace_hours,
        )

    def _merged_tables(self, manifests: Sequence[Manifest]) -> pa.Table:
        table, schema = self.lake.last_values(self.plan.config.name), self._schema()
        merged = schema.empty_table()
        for place, manifest in enumerate(manifests):  # Only one day is in memory, besides the result.
            parts = [read_file(path) for path in data_files(table.partition(manifest.partition), manifest)]
            of_day = [self._with_places(part, place).select(schema.names).cast(schema) for part in parts]
            merged = last_of_table(pa.concat_tables([merged, *of_day]), self.names)
        return merged

    def _with_places(self, rows: pa.Table, place: int) -> pa.Table:
        for name in self.names:
            rows = rows.append_column(_PLACE + name, pa.repeat(pa.scalar(place, pa.int64()), len(rows)))
            if not self.timed:
                rows = rows.append_column(_TIME + name, pa.repeat(pa.scalar(0, pa.int64()), len(rows)))
        return rows

    def _merged_frames(self, manifests: Sequence[Manifest]) -> DataFrame:
        session, table = self.workers.spark, self.lake.last_values(self.plan.config.name)
        days = [session.createDataFrame([], spark_types(self._schema()))]
        for place, manifest in enumerate(manifests):
            rows = rows_of(session, table.partition(manifest.partition), manifest)
            for name in self.names:
                rows = rows.withColumn(_PLACE + name, F.lit(place).cast("bigint"))
                if not self.timed:
                    rows = rows.withColumn(_TIME + name, F.lit(0).cast("bigint"))
            days.append(rows)
        return last_of_frame(reduce(lambda rows, more: rows.unionByName(more), days), self.names)


def value_tables(workers: Workers, plan: FeaturePlan, lake: LakePaths) -> ValueTables | None:
    """Returns the reader of items' last values, such as prices; None without the section `last_values`."""
    settings = plan.config.last_values
    return None if settings is None else ValueTables(workers, plan, settings, lake)


def _end_of_day(config: Config, dt: str) -> int | None:
    """Returns the first µs after a day; None if the log has no times."""
    bounds = bounds_of_day(config, dt)
    return None if bounds is None else bounds[1]


@dataclass(frozen=True)
class _DayColumns:
    """What a task reads from a day's log.

    Attributes:
        columns: maps the name of each new column to the column of the log.
        schema: the columns to return: item_key, and for each new column the value, the time of its event, and
            the place of the event in the log (_PLACE).
        end: the first µs after the day. Events at or after this time are left out, because a wrong clock
            would otherwise make a value the last one for all later days. None if the log has no times.
    """

    columns: Mapping[str, str]
    schema: pa.Schema
    end: int | None


def _values_of(
    splits: tuple[FileSplit, ...],
    layout: FileLayout,
    parsed: Sequence[str],
    of_day: _DayColumns,
    index: int,
) -> Iterator[pa.RecordBatch]:
    """Runs one task: returns the last values in one file split, one row per item with a value."""
    lines, names = index * _LINES_OF_SPLIT, tuple(of_day.columns)
    last = of_day.schema.empty_table()
    for block in read_split(splits[index], layout, parsed):
        of_block = last_of_table(_events_of(block, of_day, lines), names).cast(of_day.schema)
        last = last_of_table(pa.concat_tables([last, of_block]), names).cast(of_day.schema)
        lines += block.lines
    yield from last.to_batches()


def _events_of(block: ParsedBlock, of_day: _DayColumns, lines_before: int) -> pa.Table:
    """Returns the valid rows of a block, with the columns that `last_of_table` takes."""
    places = pa.array(block.row_lines + lines_before, pa.int64())
    times = pa.array(np.zeros(len(places), np.int64))
    if of_day.end is not None:
        times = plain(pa.chunked_array([block.columns[EVENT_TIME]])).cast(pa.int64())
    columns = {ITEM_KEY: block.columns[ITEM_KEY]}
    for name, column in of_day.columns.items():
        columns |= {name: block.columns[column], _TIME + name: times, _PLACE + name: places}
    rows = pa.table(columns)
    return rows if of_day.end is None else rows.filter(pc.less(times, of_day.end))


def last_of_table(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Returns the last value that is not null in each column, with one row per item that has a value.

    Args:
        rows: item_key and, for each name, the value, the time of its event (int64 µs), and the place of the
            event in the log (int64). The later of two values has the larger time or, with equal times, the
            larger place. An item may have several rows.
        names: the names of the columns of values.

    Returns:
        Rows with the columns of `rows`, without dictionaries. If an item has no value in a column, the value,
        its time and its place are null.
    """
    codes, keys = codes_of(rows[ITEM_KEY])
    columns: dict[str, pa.Array] = {ITEM_KEY: keys.cast(pa.string())}
    has_value = np.zeros(len(keys), bool)
    for name in names:
        values = plain(rows[name])
        order = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        by_time = (_numbers(rows[_PLACE + name])[order], _numbers(rows[_TIME + name])[order], codes[order])
        order = order[np.lexsort(by_time)]
        is_last = np.ones(len(order), bool)
        is_last[:-1] = codes[order][1:] != codes[order][:-1]
        last = order[is_last]
        row_of = np.full(len(keys), -1)
        row_of[codes[last]] = last
        taken = pa.array(row_of, mask=row_of < 0)
        has_value |= row_of >= 0
        columns |= {
            name: values.take(taken),
            _TIME + name: plain(rows[_TIME + name]).take(taken),
            _PLACE + name: plain(rows[_PLACE + name]).take(taken),
        }
    return pa.table(columns).filter(pa.array(has_value))


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """Returns integers as (n,) int64, with 0 for null."""
    return plain(column).fill_null(0).to_numpy(zero_copy_only=False)


def last_of_frame(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """Does the same as `last_of_table` for a Spark frame."""
    columns = []
    for name in names:
        # `max_by` ignores rows whose order is null.
        order = F.when(_column(name).isNotNull(), F.struct(_column(_TIME + name), _column(_PLACE + name)))
        of_name = (name, _TIME + name, _PLACE + name)
        columns += [F.max_by(_column(column), order).alias(column) for column in of_name]
    return rows.groupBy(ITEM_KEY).agg(*columns)


def join_values(rows: Rows, values: Rows, names: Sequence[str], *, timed: bool) -> Rows:
    """Adds the last values of each row's item: the columns `names`, null for an item without a value.

    Args:
        rows: rows with item_key and, if `timed` is true, event_time (int64 µs).
        values: the result of `ValueTables.before`: a table if `rows` is a table, or else a frame.
        names: the columns to add.
        timed: whether a row gets a value only if the time of the value's event is before the row's time. This
            matters because the log of a day may contain rows of an earlier day.

    Returns:
        The rows with the new columns at their end. Rows of a table keep their order.
    """
    if not isinstance(values, pa.Table):
        return _join_frame(frame_of(values.sparkSession, rows), values, names, timed=timed)
    if not isinstance(rows, pa.Table):
        raise ValueError("internal error, please report: a frame is joined with a table of last values")
    positions = attribute_rows(rows[ITEM_KEY], values[ITEM_KEY], ITEM_KEY)
    for name in names:
        known = positions
        if timed:
            times = plain(values[_TIME + name]).take(positions)
            is_earlier = pc.less(times, plain(rows[EVENT_TIME]).cast(pa.int64()))
            known = pc.if_else(is_earlier, positions, pa.scalar(None, pa.int32()))
        rows = rows.append_column(name, whole(values[name]).take(known))
    return rows


def _join_frame(rows: DataFrame, values: DataFrame, names: Sequence[str], *, timed: bool) -> DataFrame:
    joined = rows.join(values, ITEM_KEY, "left")
    columns = [_column(name) for name in names]
    if timed:
        columns = [
            F.when(_column(_TIME + name) < F.col(EVENT_TIME), _column(name)).alias(name) for name in names
        ]
    return joined.select(*map(_column, rows.columns), *columns)


def _column(name: str) -> Column:
    return F.col(f"`{name}`")
