"""Prepares the rows of days with Spark frames, for clusters and for `workflow.engine: sql`.

Tasks scan the raw log and store its good rows (those that pass all checks) as Parquet files in the data lake.
Spark reads these files, prepares the rows, and writes the table `prepared`.

The history of a row consists of the last items that the row's user clicked before the row. Rows of a user
are ordered by event_time, then by row_id; without an event_time, by row_id. The history of a row contains
only clicks of earlier rows in this order. So it contains neither the row's own click nor later
clicks. If the log is stored by day, the clicks of earlier days precede the clicks of the row's day.

In the functions below, a click is a struct with the fields `time` and `item`. `time` is the event_time, or
null if the log has none. An array of clicks is ordered from the oldest to the most recent click.

If the log has groups (keys.group), the rows of a group compete for one click. The click is not known when the
group is shown. So all rows of a group on a day get the history of the group's first row.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from conf.stage_types import Impressions
from conf.types import History, Split
from etl.prepare.last_values import ValueTables, join_values, value_tables
from etl.prepare.prepared_passes import PreparedPasses, earlier_digests
from etl.quality.day_counts import DayCounts
from etl.raw.erased_users import erased_of_table, is_erased
from etl.raw.files import RawFiles, impressions_of
from etl.raw.layout_digest import click_days
from etl.raw.splits import DAY, SPLIT, add_negatives, add_to_log_rows, assign_split
from etl.readers.impressions import ERROR, log_counts, read_impressions, unreadable
from etl.spark.raw_frames import column_types, join_attributes, key_text, ordered_rows, read_attributes
from etl.text.parse_block import layout_of_days
from etl.text.published_days import ScannedDay
from etl.text.stored_rows import LINE, TASK, RowsFile
from etl.workflow.feature_plan import FeaturePlan
from etl.workflow.fitted_workflow import FittedWorkflow
from spark.rows import frame_of, spark_types
from spark.workers import Workers
from storage import file_io
from storage.feature_spec import EVENT_TIME, GROUP_KEY, ITEM_KEY, LABEL, ROW_ID, USER_KEY
from storage.manifest import Manifest, combined_digest
from storage.paths import LakePaths, Partition
from storage.publish import Rules, new_attempt, publish, rows_of

CLICKS = "clicks"
_EARLIER, _RECENT, _TODAY = "_earlier", "_recent", "_today"
ARRAY = "array<struct<time:bigint,item:string>>"


def add_history(rows: DataFrame, history: History, earlier: DataFrame | None = None) -> DataFrame:
    """Adds the column `history.column`: an array of item keys, with the most recent key first.

    The array is empty if the user has no click before the row. If `history.ages` is set, a second column has
    the age of each click: the number of seconds between it and the most recent click of the array. Memory and
    time per row depend only on `history.length`, and not on the number of the user's rows.

    Args:
        rows: frame with user_key, item_key, label, row_id and, if the log has them, group_key and event_time.
        history: the section `history` of the configuration.
        earlier: one row per user with user_key and clicks, an array of the last clicks on earlier days; None
            if there are no earlier days.
    """
    order = _order(rows)
    # For a row with a click, this window contains the user's last `length` clicks, including the row's own
    # click.
    same_label = Window.partitionBy(USER_KEY, LABEL).orderBy(*order).rowsBetween(1 - history.length, 0)
    before = Window.partitionBy(USER_KEY).orderBy(*order).rowsBetween(Window.unboundedPreceding, -1)
    clicked = F.col(LABEL) == 1
    click, empty = F.col(ITEM_KEY), F.array().cast("array<string>")
    if history.ages is not None:
        click, empty = _click(rows), F.array().cast(ARRAY)
    recent = F.collect_list(F.when(clicked, click)).over(same_label)
    result = rows.withColumn(_RECENT, F.when(clicked, recent))
    result = result.withColumn(_TODAY, F.last(_RECENT, ignorenulls=True).over(before))
    if GROUP_KEY in rows.columns:
        of_group = Window.partitionBy(USER_KEY, GROUP_KEY).orderBy(*order)
        result = result.withColumn(_TODAY, F.first(_TODAY).over(of_group))
    clicks = F.coalesce(_TODAY, empty)
    if earlier is not None:
        result = result.join(earlier.select(USER_KEY, F.col(CLICKS).alias(_EARLIER)), USER_KEY, "left")
        older = F.coalesce(_EARLIER, F.array().cast(ARRAY))
        # A row's time may be before the day of its partition. So leave out clicks that are not older than the
        # row.
        if EVENT_TIME in rows.columns:
            older = F.filter(older, lambda click: click["time"] < F.col(EVENT_TIME))
        clicks = F.concat(older.getField("item") if history.ages is None else older, clicks)
    clicks = F.reverse(_last(clicks, history.length))
    if history.ages is None:
        return result.select(*rows.columns, clicks.alias(history.column))
    result = result.select(*rows.columns, clicks.alias(_RECENT))
    return result.select(*rows.columns, *_items_and_ages(F.col(_RECENT), history.column, history.ages))


def last_clicks(rows: DataFrame, length: int) -> DataFrame:
    """Returns one row per user with a click.

    The columns are user_key and clicks, an array of the user's last `length` clicks.
    """
    latest_first = Window.partitionBy(USER_KEY).orderBy(*(F.desc(name) for name in _order(rows)))
    clicks = rows.where(F.col(LABEL) == 1).select(
        USER_KEY, _click(rows).alias("click"), F.row_number().over(latest_first).alias("place")
    )
    oldest_first = F.reverse(F.sort_array(F.collect_list(F.struct("place", "click")))).getField("click")
    return clicks.where(F.col("place") <= length).groupBy(USER_KEY).agg(oldest_first.alias(CLICKS))


def merge_days(days: list[DataFrame], length: int) -> DataFrame:
    """Merges the last clicks of several days, in ascending order of the days.

    Each element of `days` and the result have the columns user_key and clicks. Clicks of a later day are more
    recent than clicks of an earlier day. The result has one row per user with at most `length` clicks.
    """
    numbered = [day.withColumn("day", F.lit(number)) for number, day in enumerate(days)]
    arrays = F.sort_array(F.collect_list(F.struct("day", CLICKS))).getField(CLICKS)
    merged = reduce(DataFrame.unionByName, numbered).groupBy(USER_KEY).agg(F.flatten(arrays).alias(CLICKS))
    return merged.select(USER_KEY, _last(F.col(CLICKS), length).alias(CLICKS))


def as_history(clicks: DataFrame, history: History) -> DataFrame:
    """Converts last clicks (user_key, clicks) to histories (user_key and the columns of `history`)."""
    if history.ages is None:
        items = F.col(CLICKS).getField("item")
        return clicks.select(USER_KEY, F.reverse(_last(items, history.length)).alias(history.column))
    recent = clicks.select(USER_KEY, F.reverse(_last(F.col(CLICKS), history.length)).alias(_RECENT))
    return recent.select(USER_KEY, *_items_and_ages(F.col(_RECENT), history.column, history.ages))


def _items_and_ages(clicks: Column, items: str, ages: str) -> tuple[Column, Column]:
    """Returns the columns `items` and `ages` of arrays of clicks, with the most recent click first.

    An age is the number of seconds between a click and the first click of the array. A click of an earlier
    day may have a later time than the first click. Its age is then 0.
    """
    newest = clicks[0]["time"]

    def age(click: Column) -> Column:
        return F.floor(F.greatest(newest - click["time"], F.lit(0)) / F.lit(1_000_000)).cast("bigint")

    return clicks.getField("item").alias(items), F.transform(clicks, age).alias(ages)


def _order(rows: DataFrame) -> list[str]:
    return [EVENT_TIME, ROW_ID] if EVENT_TIME in rows.columns else [ROW_ID]


def _click(rows: DataFrame) -> Column:
    time = F.col(EVENT_TIME) if EVENT_TIME in rows.columns else F.lit(None)
    return F.struct(time.cast("bigint").alias("time"), F.col(ITEM_KEY).alias("item"))


def _last(values: Column, length: int) -> Column:
    """Returns the last `length` elements of an array."""
    return F.slice(values, F.greatest(F.size(values) - length + 1, F.lit(1)), F.lit(length))


# The code below publishes and reads the table `last_clicks`, from which the histories of later days are
# computed.
#
# The partition of a day has one row per user with a click on that day, sorted by user_key. The columns are
# user_key, items (item keys, oldest first) and, if the log has an event_time, times (event_time of each
# item). So the histories of a day need only one small table for each earlier day, and no raw log is parsed
# again.


@dataclass(frozen=True)
class LastClicks:
    """Reads the clicks before a day from the table `last_clicks`, and publishes its missing partitions.

    The log must be stored by day. A day is usable if it has a raw log, or if its partition was published
    before its raw log was deleted.
    """

    workers: Workers
    plan: FeaturePlan
    history: History
    lake: LakePaths

    def before(self, day: str) -> DataFrame | None:
        """Returns the last clicks on the `history.days` days before `day`, with one row per user.

        The columns are user_key and clicks (see `last_clicks`). Returns None if no day is usable.
        """
        table = self.lake.last_clicks
        days = [
            _as_clicks(rows_of(self.workers.spark, table.partition(manifest.partition), manifest))
            for manifest in self._days(day)
        ]
        return merge_days(days, self.history.length) if days else None

    def digest_before(self, day: str) -> str:
        """Returns a digest of everything that the method `before` reads for this day."""
        return combined_digest((manifest.digest for manifest in self._days(day)), self.lake.recorder)

    def _days(self, day: str) -> list[Manifest]:
        return click_days(self.plan.config, self.history, self.lake, day, self._publish)

    def _publish(self, raw: RawFiles, partition: Partition, inputs: dict[str, str]) -> Manifest:
        clicks = last_clicks(ordered_rows(self.workers, self.plan, raw), self.history.length)
        times = [F.col(f"{CLICKS}.time").alias("times")] if self.plan.config.log.event_time else []
        return publish(
            clicks.select(USER_KEY, F.col(f"{CLICKS}.item").alias("items"), *times),
            partition,
            inputs=inputs,
            row_group_rows=self.plan.config.output.row_group_rows,
            rules=Rules([USER_KEY]),
            sort_by=[USER_KEY],
            grace_hours=self.plan.config.output.grace_hours,
        )


def clicks_before(workers: Workers, plan: FeaturePlan, lake: LakePaths) -> LastClicks | None:
    """Returns an object that reads the clicks of earlier days.

    Returns None if the configuration has no section `history`, or if each day has rows of several
    splits (section `split`).
    """
    if plan.config.history is None or plan.is_divided:
        return None
    return LastClicks(workers, plan, plan.config.history, lake)


def _as_clicks(rows: DataFrame) -> DataFrame:
    """Converts rows of the table `last_clicks` to the columns user_key and clicks."""
    times = F.col("times") if "times" in rows.columns else F.transform("items", lambda _: F.lit(None))
    click = F.arrays_zip(times.cast("array<bigint>").alias("time"), F.col("items").alias("item"))
    return rows.select(USER_KEY, click.cast(ARRAY).alias(CLICKS))


# The class below prepares the rows of days with Spark frames, for clusters and for `workflow.engine: sql`.

log = logging.getLogger("nightrank.etl")


class FramePasses(PreparedPasses):
    """Prepares the rows of days with Spark frames, and writes the feature partitions."""

    def __init__(self, workers: Workers, plan: FeaturePlan, lake: LakePaths) -> None:
        self._earlier: LastClicks | None = clicks_before(workers, plan, lake)
        self._values: ValueTables | None = value_tables(workers, plan, lake)
        super().__init__(workers, plan, lake, earlier_digests(self._earlier, self._values))

    def encode_days(
        self,
        workflow: FittedWorkflow,
        days: Mapping[str, tuple[RawFiles, DayCounts, dict[str, str]]],
        rules: Rules,
    ) -> dict[str, Manifest]:
        """Writes the feature partitions of days, and publishes them.

        If `workflow.engine` is `sql`, Spark frames compute the features. Otherwise, tasks compute them.
        """
        if workflow.engine == "arrow":
            return super().encode_days(workflow, days, rules)
        self._prepare([raw for raw, _, _ in days.values() if not self._is_prepared(raw)])
        table = self._lake.features(workflow.version)
        return {
            dt: self._publish_features(
                workflow, table.partition(dt), dt, counts, inputs | self.table_inputs(raw), rules
            )
            for dt, (raw, counts, inputs) in days.items()
        }

    def _publish_features(
        self,
        workflow: FittedWorkflow,
        partition: Partition,
        dt: str,
        counts: DayCounts,
        inputs: Mapping[str, str],
        rules: Rules,
    ) -> Manifest:
        splits: tuple[Split, ...] = ("train", "validation", "test")
        if self._plan.is_divided:
            parts = [self._frame_of(dt, split).withColumn(SPLIT, F.lit(split)) for split in splits]
            rows = parts[0].unionByName(parts[1]).unionByName(parts[2])
        else:
            rows = self._frame_of(dt, None)
        return publish(
            workflow.apply(rows, keep=[SPLIT] if self._plan.is_divided else []),
            partition,
            inputs=inputs,
            row_group_rows=self._plan.config.output.row_group_rows,
            rows_in=counts.rows_in,
            dropped=counts.dropped,
            rules=rules,
            split_column=SPLIT if self._plan.is_divided else None,
            grace_hours=self._plan.config.output.grace_hours,
            **self._expected_rows(counts.good),
        )

    def _prepare_days(self, days: Sequence[RawFiles]) -> None:
        layout = layout_of_days(self._plan, days)
        columns = self._log_columns()
        folders = [self._prepared(raw.dt).file(f"{new_attempt(self._prepared(raw.dt))}-rows") for raw in days]

        def store(day: int, task: int) -> RowsFile:
            return RowsFile(f"{folders[day]}/part-{task:05d}.parquet", columns)

        try:
            scanned = self._scan(days, layout, self._splits_of(days, layout), store)
            for day in scanned:
                self._publish_prepared(day)
        finally:
            for folder in folders:
                for file in file_io.list_files(folder):
                    file_io.filesystem(folder)[0].delete_file(file.path)

    def _publish_prepared(self, day: ScannedDay) -> None:
        raw, config = day.raw, self._plan.config
        good_rows = self._stored_rows(day)
        rows = prepare_frame(self._workers, self._plan, good_rows, raw, self._earlier, self._values)
        kept = [name for name in (*self._columns(), SPLIT) if name in rows.columns]
        good = sum(summary.good for _, summary in day.split_summaries())
        manifest = publish(
            rows.select(*kept),
            self._prepared(raw.dt),
            inputs=self._prepared_inputs(raw),
            row_group_rows=config.output.row_group_rows,
            split_column=SPLIT if self._plan.is_divided else None,
            grace_hours=config.output.grace_hours,
            **self._expected_rows(good),
        )
        log.info("%s: %d rows are prepared", raw.dt, manifest.rows)

    def _stored_rows(self, day: ScannedDay) -> DataFrame:
        """Returns the good rows that the scan pass has stored, with their row_ids."""
        spark = self._workers.spark
        types = pa.schema([(TASK, pa.int32()), (LINE, pa.int64()), *self._stored_types().items()])
        files = [summary.stored for _, summary in day.split_summaries() if summary.stored]
        schema = spark_types(types)
        if not files:
            rows = spark.createDataFrame([], schema)
        else:
            rows = spark.read.schema(schema).parquet(*map(file_io.for_spark_reader, files))
        starts = spark.createDataFrame(
            [(task, first_row) for task, _, first_row, _ in day.first_lines()], f"{TASK} int, _first long"
        )
        numbered = rows.join(F.broadcast(starts), TASK)
        return numbered.select(
            (F.col("_first") + F.col(LINE)).alias(ROW_ID), *(f"`{name}`" for name in self._log_columns())
        )

    def _stored_types(self) -> dict[str, pa.DataType]:
        types = column_types(self._plan, self._log_columns())
        return {name: types[name] for name in self._log_columns()}

    def _expected_rows(self, good: int) -> dict[str, Any]:
        """Returns the argument `expected_rows` of `publish`; an empty dict if the number is not known."""
        adds = self._plan.config.negatives is not None or not self._plan.keeps_rows
        return {} if adds or self._plan.is_divided else {"expected_rows": good}


# The functions below prepare the good rows of a day as a Spark frame. They add splits, histories, negatives,
# positions, attributes and last values.
#
# etl/prepare/task_passes.py computes the same rows in tasks on one machine, without Spark frames. On a
# cluster, Spark and its accelerator compute the joins and windows.


def prepare_frame(
    workers: Workers,
    plan: FeaturePlan,
    rows: DataFrame,
    raw: RawFiles,
    earlier: LastClicks | None,
    values: ValueTables | None,
) -> DataFrame:
    """Returns the prepared rows of one day, with keys, label, raw columns, attributes and the day (`_day`).

    If one partition contains all splits (`split.by` is not `day`), the rows also have a column `split`.

    Args:
        workers, plan: the workers and the plan of the run.
        rows: the good rows of the day, with row_id, label, keys, event_time, weight and raw columns.
        raw: the files of the day.
        earlier: reads the clicks of earlier days; None if histories need no such clicks.
        values: reads the last values of items; None if the section `last_values` is not set.

    Raises:
        DataError: see the called functions.
    """
    spark = workers.spark
    if plan.is_divided:
        rows = assign_split(rows, plan.config.split)
    if plan.config.history:
        rows = add_history(rows, plan.config.history, earlier.before(raw.dt) if earlier else None)
    if plan.config.negatives and plan.config.keys:
        weighted = plan.config.log.label.weights is not None
        rows = add_negatives(rows, plan.config.negatives, plan.config.keys.item, weighted)
    rows = add_positions(workers, plan, rows, raw)
    if plan.config.keys:
        for section, table, key in (
            ("users", plan.config.users, plan.config.keys.user),
            ("items", plan.config.items, plan.config.keys.item),
        ):
            if table:
                attributes = read_attributes(
                    spark, plan.config, table, key, section, raw.dt, key, raw.recorder
                )
                erased = erased_of_table(plan.config, table, raw.dt) if section == "users" else None
                if erased is not None:
                    attributes = attributes.where(~is_erased(key_text(plan.config, table, key), erased))
                rows = join_attributes(plan.config, rows, attributes, table, key)
    if values is not None:
        before = frame_of(spark, values.before(raw.dt, as_frame=True))
        rows = frame_of(spark, join_values(rows, before, values.names, timed=values.timed))
    rows = rows.withColumn(DAY, F.lit(raw.dt))
    return _apply_row_operators(rows, plan)


def _apply_row_operators(rows: DataFrame, plan: FeaturePlan) -> DataFrame:
    negatives = plan.config.negatives
    for changer in plan.changers:
        if negatives and changer.of_log_rows:
            rows = add_to_log_rows(rows, negatives.per_positive + 1, changer.apply)
        else:
            rows = changer.apply(rows)
    return rows


# The functions below add the position at which the item of a row was shown to its user
# (`serving.impressions.row_column`).
#
# The log of impressions of a day is joined with the rows of the same day by user and item. If the click log
# has an event time, a row gets the position of the last impression at or before its own time. So no row uses
# a later impression. If several impressions have this time, the row gets the smallest of their positions.
# Without an event time, a row gets the smallest position of the day. A row without such an impression gets
# null as position. Every row occurs once in the result.

_POSITION, _IS_ROW = "position", "_is_row"


def add_positions(workers: Workers, plan: FeaturePlan, rows: DataFrame, raw: RawFiles) -> DataFrame:
    """Adds the column `serving.impressions.row_column` (bigint) if it is configured.

    Invalid impressions are ignored. If their share is too large, a warning is logged.

    Args:
        workers, plan: the workers and the plan of the run.
        rows: rows of one day, with user_key, item_key and, if the log has it, event_time.
        raw: the files of the day's click log.

    Raises:
        DataError: a file of the day's impressions cannot be read.
    """
    settings = plan.config.serving.row_positions
    if settings is None or settings.row_column is None:
        return rows
    files = impressions_of(plan.config, raw)
    if files is None:
        return rows.withColumn(settings.row_column, F.lit(None).cast("bigint"))
    logged = frame_of(workers.spark, read_impressions(workers, plan.config, files))
    _check(logged, settings, raw.dt)
    # Spark reads the files again for the join. If a file cannot be read at that time, the job must stop.
    readable = F.when(F.col(ERROR).isNotNull(), F.raise_error(F.col(ERROR)).cast("boolean"))
    valid = logged.where(readable.otherwise(_is_valid(settings)))
    return join_positions(rows, valid, settings.row_column)


def join_positions(rows: DataFrame, impressions: DataFrame, column: str) -> DataFrame:
    """Adds a column with the position at which the item of each row was shown; null if it was not shown.

    Args:
        rows: rows with user_key, item_key and, if the log has it, event_time.
        impressions: user_key, item_key, position and event_time. Columns that the join uses have no nulls.
        column: the name of the new column.
    """
    if EVENT_TIME not in rows.columns:
        first = impressions.groupBy(USER_KEY, ITEM_KEY).agg(F.min(_POSITION).alias(column))
        return rows.join(first, [USER_KEY, ITEM_KEY], "left").select(*rows.columns, column)
    shown = impressions.select(
        USER_KEY, ITEM_KEY, EVENT_TIME, F.col(_POSITION).alias(column), F.lit(0).alias(_IS_ROW)
    )
    marked = rows.withColumns({column: F.lit(None).cast("bigint"), _IS_ROW: F.lit(1)})
    both = marked.unionByName(shown, allowMissingColumns=True)
    # At equal times, impressions are sorted before rows, and larger positions before smaller ones. So F.last
    # takes the smallest position.
    in_order = Window.partitionBy(USER_KEY, ITEM_KEY).orderBy(EVENT_TIME, _IS_ROW, F.desc(column))
    until_now = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    last = both.withColumn(column, F.last(column, ignorenulls=True).over(until_now))
    return last.where(F.col(_IS_ROW) == 1).select(*rows.columns, column)


def _is_valid(settings: Impressions) -> Column:
    """Returns the condition that an impression has all fields that the join needs.

    The condition is false for the rows by which tasks report files that cannot be read.
    """
    names = [USER_KEY, ITEM_KEY, _POSITION, *([EVENT_TIME] if settings.time else [])]
    return reduce(and_, (F.col(name).isNotNull() for name in names))


def _check(logged: DataFrame, settings: Impressions, dt: str) -> None:
    """Counts the invalid impressions of a day, and logs a warning if their share is too large.

    Raises:
        DataError: a file cannot be read.
    """
    counted = logged.agg(
        F.min(ERROR).alias(ERROR),
        F.count(F.lit(1)).alias("rows"),
        F.count(F.when(~_is_valid(settings), 1)).alias("invalid"),
    ).first()
    if counted is None or not counted["rows"]:
        return
    if counted[ERROR] is not None:
        raise unreadable(counted[ERROR])
    log_counts(settings, dt, counted["rows"], counted["invalid"])
