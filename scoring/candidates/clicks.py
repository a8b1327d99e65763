"""Selects the feature rows that sources and filters of candidates read, such as clicks of the last days."""

from __future__ import annotations

from datetime import date, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from conf.dates import days_since_epoch
from scoring.inputs.requests import FEATURES_DT, ITEM_INDEX
from storage.feature_spec import EVENT_TIME, ITEM_KEY, LABEL, USER_KEY

# Columns of a feature table that candidates are computed from; also EVENT_TIME if the log has one.
CLICK_COLUMNS = (USER_KEY, ITEM_KEY, LABEL)

_DAY_US = 86_400_000_000


def clicked_items(rows: DataFrame, items: DataFrame) -> DataFrame:
    """Distinct (user_key, item_index) of the rows with label 1 whose item is in `items`."""
    return observed_items(rows.where(F.col(LABEL) == 1), items)


def observed_items(rows: DataFrame, items: DataFrame) -> DataFrame:
    """Distinct (user_key, item_index) of the rows, clicked or not, whose item is in `items`."""
    pairs = rows.select(USER_KEY, ITEM_KEY).join(items.select(ITEM_KEY, ITEM_INDEX), ITEM_KEY)
    return pairs.select(USER_KEY, ITEM_INDEX).distinct()


def within(rows: DataFrame, days: int | None, run_date: str) -> DataFrame:
    """The rows of the last `days` days, including the run date; all rows if `days` is None.

    The day of a row is that of its event_time, or the date of its partition if the log has no event_time.
    """
    if days is None:
        return rows
    first = date.fromisoformat(run_date) - timedelta(days=days - 1)
    if EVENT_TIME in rows.columns:
        since = days_since_epoch(first) * _DAY_US
        return rows.where(F.col(EVENT_TIME).between(since, since + days * _DAY_US - 1))
    return rows.where(F.col(FEATURES_DT).between(first.isoformat(), run_date))


def recency(rows: DataFrame) -> Column:
    """The column that orders rows in time: event_time, or the date of the partition if the log has none."""
    return F.col(EVENT_TIME if EVENT_TIME in rows.columns else FEATURES_DT)
