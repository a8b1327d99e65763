"""Computes the history of each row: the last items that the row's user clicked before the row.

Rows of a user are ordered by event_time, then by row_id; without an event_time, by row_id. The history of a
row contains only clicks of earlier rows in this order. So it contains neither the row's own click nor later
clicks. If the log is stored by day, the clicks of earlier days precede the clicks of the row's day.

In the functions below, a click is a struct `time`, `item`. `time` is the event_time, or null if the log has
none. An array of clicks is ordered from the oldest to the most recent click.

If the log has groups (keys.group), the rows of a group compete for one click. The click is not known when the
group is shown. So all rows of a group on a day get the history of the group's first row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from conf.types import History
from etl.raw.files import RawFiles
from etl.raw.layout_digest import click_days
from etl.spark.raw_frames import ordered_rows
from etl.workflow.feature_plan import FeaturePlan
from spark.workers import Workers
from storage.feature_spec import EVENT_TIME, GROUP_KEY, ITEM_KEY, LABEL, ROW_ID, USER_KEY
from storage.manifest import Manifest, combined_digest
from storage.paths import LakePaths, Partition
from storage.publish import Rules, publish, rows_of

CLICKS = "clicks"
_EARLIER, _RECENT, _TODAY = "_earlier", "_recent", "_today"
ARRAY = "array<struct<time:bigint,item:string>>"


def add_history(rows: DataFrame, history: History, earlier: DataFrame | None = None) -> DataFrame:
    """Adds the column `history.column`: an array of item keys, with the most recent key first.

    The array is empty if the user has no click before the row. If `history.ages` is set, a second column has
    the ages of the items. Memory and time per row depend only on `history.length`, and not on the number of
    the user's rows.

    Args:
        rows: frame with user_key, item_key, label, row_id and, if the log has them, group_key and event_time.
        history: the section `history` of the configuration.
        earlier: one row per user with user_key and clicks, an array of the last clicks on earlier days; None
            if there are no earlier days.
    """
    order = _order(rows)
    # Among the rows with the same user and label, the last `length` rows up to a click are clicks.
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
        if EVENT_TIME in rows.columns:  # the time of a row may precede the day of its partition
            older = F.filter(older, lambda click: click["time"] < F.col(EVENT_TIME))
        clicks = F.concat(older.getField("item") if history.ages is None else older, clicks)
    clicks = F.reverse(_last(clicks, history.length))
    if history.ages is None:
        return result.select(*rows.columns, clicks.alias(history.column))
    result = result.select(*rows.columns, clicks.alias(_RECENT))
    return result.select(*rows.columns, *_items_and_ages(F.col(_RECENT), history.column, history.ages))


def last_clicks(rows: DataFrame, length: int) -> DataFrame:
    """Returns one row per user with a click: user_key and clicks, the last `length` clicks."""
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

    A click of an earlier day may have a later time than the first click of the list. Its age is then 0.
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


# Publishes and reads the table `last_clicks` of a lake. The histories of later days are computed from it.
#
# The partition of a day has one row per user with a click on that day, sorted by user_key. The columns are
# user_key, items (item keys, oldest first) and, if the log has an event_time, times (event_time of each
# item). So the histories of a day need only one small table for each earlier day, and no raw log is parsed
# again.


@dataclass(frozen=True)
class LastClicks:
    """Reads the clicks before a day, from a log that is stored by day. Publishes partitions that are missing.

    A day is usable if it has a raw log, or if its partition was published before its raw log was deleted.
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
        """Returns a digest of everything that `before` reads."""
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
    """Returns the reader of clicks of earlier days.

    Returns None if there are no histories, or if the log is one table.
    """
    if plan.config.history is None or plan.is_divided:
        return None
    return LastClicks(workers, plan, plan.config.history, lake)


def _as_clicks(rows: DataFrame) -> DataFrame:
    """Converts rows of the table `last_clicks` to the columns user_key and clicks."""
    times = F.col("times") if "times" in rows.columns else F.transform("items", lambda _: F.lit(None))
    click = F.arrays_zip(times.cast("array<bigint>").alias("time"), F.col("items").alias("item"))
    return rows.select(USER_KEY, click.cast(ARRAY).alias(CLICKS))
