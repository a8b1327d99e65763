"""Computes the history of each row: the items that its user clicked last before the row.

Rows of a user are ordered by event_time, then by row_id; without an event_time, by row_id. A history has only
clicks of rows before its row in this order, so it uses nothing from the future, and not the row's own click.
If the log is stored by day, the clicks of earlier days come before those of the row's day.

In the functions below, a click is a struct `time`, `item`. `time` is the event_time, or null if the log has
none. An array of clicks is ordered from the oldest to the most recent click.

If the log has groups (keys.group), the rows of a group compete for one click, so a click of the group is not
known when the group is shown. All rows of a group on a day have the history of the group's first row.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from conf.types import History
from storage.feature_spec import EVENT_TIME, GROUP_KEY, ITEM_KEY, LABEL, ROW_ID, USER_KEY

CLICKS = "clicks"
_EARLIER, _RECENT, _TODAY = "_earlier", "_recent", "_today"
ARRAY = "array<struct<time:bigint,item:string>>"


def add_history(rows: DataFrame, history: History, earlier: DataFrame | None = None) -> DataFrame:
    """Adds the column `history.column`: an array of item keys, the most recent one first.

    The array is empty if the user has no click before the row. Memory and time per row do not depend on the
    number of the user's rows, only on `history.length`.

    Args:
        rows: frame with user_key, item_key, label, row_id and, if the log has them, group_key and event_time.
        history: the settings.
        earlier: one row per user with user_key and clicks, an array of the last clicks on earlier days; None
            if there are no earlier days.
    """
    order = _order(rows)
    # Among the rows with the same user and label, the last `length` rows up to a click are clicks.
    same_label = Window.partitionBy(USER_KEY, LABEL).orderBy(*order).rowsBetween(1 - history.length, 0)
    before = Window.partitionBy(USER_KEY).orderBy(*order).rowsBetween(Window.unboundedPreceding, -1)
    clicked = F.col(LABEL) == 1
    recent = F.collect_list(F.when(clicked, F.col(ITEM_KEY))).over(same_label)
    result = rows.withColumn(_RECENT, F.when(clicked, recent))
    result = result.withColumn(_TODAY, F.last(_RECENT, ignorenulls=True).over(before))
    if GROUP_KEY in rows.columns:
        of_group = Window.partitionBy(USER_KEY, GROUP_KEY).orderBy(*order)
        result = result.withColumn(_TODAY, F.first(_TODAY).over(of_group))
    items = F.coalesce(_TODAY, F.array().cast("array<string>"))
    if earlier is not None:
        result = result.join(earlier.select(USER_KEY, F.col(CLICKS).alias(_EARLIER)), USER_KEY, "left")
        older = F.coalesce(_EARLIER, F.array().cast(ARRAY))
        if EVENT_TIME in rows.columns:  # the time of a row may precede the day of its partition
            older = F.filter(older, lambda click: click["time"] < F.col(EVENT_TIME))
        items = F.concat(older.getField("item"), items)
    return result.select(*rows.columns, F.reverse(_last(items, history.length)).alias(history.column))


def last_clicks(rows: DataFrame, length: int) -> DataFrame:
    """Returns one row per user with a click: user_key and clicks, the last `length` clicks."""
    latest_first = Window.partitionBy(USER_KEY).orderBy(*(F.desc(name) for name in _order(rows)))
    clicks = rows.where(F.col(LABEL) == 1).select(
        USER_KEY, _click(rows).alias("click"), F.row_number().over(latest_first).alias("place")
    )
    oldest_first = F.reverse(F.sort_array(F.collect_list(F.struct("place", "click")))).getField("click")
    return clicks.where(F.col("place") <= length).groupBy(USER_KEY).agg(oldest_first.alias(CLICKS))


def merge_days(days: list[DataFrame], length: int) -> DataFrame:
    """Merges the last clicks of several days, which are given oldest first.

    Each element of `days` and the result have the columns user_key and clicks. Clicks of a later day are more
    recent than those of an earlier day. The result has one row per user with at most `length` clicks.
    """
    numbered = [day.withColumn("day", F.lit(number)) for number, day in enumerate(days)]
    arrays = F.sort_array(F.collect_list(F.struct("day", CLICKS))).getField(CLICKS)
    merged = reduce(DataFrame.unionByName, numbered).groupBy(USER_KEY).agg(F.flatten(arrays).alias(CLICKS))
    return merged.select(USER_KEY, _last(F.col(CLICKS), length).alias(CLICKS))


def as_history(clicks: DataFrame, history: History) -> DataFrame:
    """Converts last clicks (user_key, clicks) to histories (user_key and the column `history.column`)."""
    items = F.col(CLICKS).getField("item")
    return clicks.select(USER_KEY, F.reverse(_last(items, history.length)).alias(history.column))


def _order(rows: DataFrame) -> list[str]:
    return [EVENT_TIME, ROW_ID] if EVENT_TIME in rows.columns else [ROW_ID]


def _click(rows: DataFrame) -> Column:
    time = F.col(EVENT_TIME) if EVENT_TIME in rows.columns else F.lit(None)
    return F.struct(time.cast("bigint").alias("time"), F.col(ITEM_KEY).alias("item"))


def _last(values: Column, length: int) -> Column:
    """Returns the last `length` elements of an array."""
    return F.slice(values, F.greatest(F.size(values) - length + 1, F.lit(1)), F.lit(length))
