"""Selects the feature rows that candidates are computed from, such as the clicks of the last days."""

from __future__ import annotations

from datetime import date, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from conf.dates import days_since_epoch
from conf.lazy_pyspark import F
from scoring.inputs.requests import FEATURES_DT
from spark.rows import Rows, query
from storage.feature_spec import EVENT_TIME, ITEM_KEY, LABEL, USER_KEY, WEIGHT

# Columns of a feature table that candidates are computed from; also EVENT_TIME if the log has one, and WEIGHT
# if rows have weights.
CLICK_COLUMNS = (USER_KEY, ITEM_KEY, LABEL)

_DAY_US = 86_400_000_000


def clicked_items(rows: Rows, items: Rows) -> Rows:
    """Returns one row (user_key, item_index) for each user and each item that this user clicked.

    Items that are not in `items` are left out.
    """
    return observed_items(query("SELECT user_key, item_key FROM {rows} WHERE label = 1", rows=rows), items)


def observed_items(rows: Rows, items: Rows) -> Rows:
    """Returns one row (user_key, item_index) for each user and each item in the rows of this user.

    It does not matter whether the user clicked the item.

    Items that are not in `items` are left out.
    """
    pairs = "SELECT DISTINCT user_key, item_index FROM {rows} JOIN {items} USING (item_key)"
    return query(pairs, rows=rows, items=items)


def has_weights(rows: Rows) -> bool:
    """Returns whether rows have weights. `rows` has no other columns than those of `candidate_rows`."""
    return WEIGHT in (rows.column_names if isinstance(rows, pa.Table) else rows.columns)


def weight_of_clicks(rows: Rows) -> str:
    """Returns the SQL aggregate that counts clicks. If rows have weights, it adds the weights of the clicks.

    A sum of float32 weights in float64 is exact, so it does not depend on the order of the rows, as long as
    it is less than 2²⁹ times the smallest weight.
    """
    return f"sum(CAST({WEIGHT} AS DOUBLE))" if has_weights(rows) else "count(1)"


def within(rows: Rows, days: int | None, run_date: str) -> Rows:
    """Returns the rows of the last `days` days, including the run date; all rows if `days` is None.

    The day of a row is the day of its event_time. If the log has no event_time, it is the date of the
    partition.
    """
    if days is None:
        return rows
    first = date.fromisoformat(run_date) - timedelta(days=days - 1)
    if isinstance(rows, pa.Table):
        return _within_table(rows, first, days, run_date)
    if EVENT_TIME in rows.columns:
        since = days_since_epoch(first) * _DAY_US
        return rows.where(F.col(EVENT_TIME).between(since, since + days * _DAY_US - 1))
    return rows.where(F.col(FEATURES_DT).between(first.isoformat(), run_date))


def _within_table(rows: pa.Table, first: date, days: int, run_date: str) -> pa.Table:
    """Does the work of `within` for a table. `first` is the first of the days."""
    if EVENT_TIME in rows.column_names:
        since = days_since_epoch(first) * _DAY_US
        time = rows[EVENT_TIME]
        return rows.filter(pc.and_(pc.greater_equal(time, since), pc.less(time, since + days * _DAY_US)))
    day = rows[FEATURES_DT]
    return rows.filter(pc.and_(pc.greater_equal(day, first.isoformat()), pc.less_equal(day, run_date)))


def recency(rows: Rows) -> str:
    """Returns the name of the column that orders rows by time.

    This column is event_time. If the log has no event_time, it is the date of the partition.
    """
    names = rows.column_names if isinstance(rows, pa.Table) else rows.columns
    return EVENT_TIME if EVENT_TIME in names else FEATURES_DT
