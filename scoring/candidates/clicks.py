"""Selects the feature rows that candidates are computed from, such as the clicks of the last days."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.lazy_imports import F
from conf.names import days_since_epoch
from etl.raw.time_text import starts_of_days
from scoring.requests import FEATURES_DT
from spark.rows import ReadableRows, Rows, StoredRows, query, whole
from storage.feature_spec import EVENT_TIME, ITEM_KEY, LABEL, USER_KEY, WEIGHT

# Columns of a feature table that candidates are computed from; also EVENT_TIME if the log has one, and WEIGHT
# if rows have weights.
CLICK_COLUMNS = (USER_KEY, ITEM_KEY, LABEL)


def clicked_items(rows: ReadableRows, items: Rows, users: Rows | None = None) -> Rows:
    """Returns the distinct pairs (user_key, item_index) of the clicks.

    Items that are not in `items` and users that are not in `users` are left out.
    """
    return observed_items(rows, items, users, "label = 1")


def observed_items(
    rows: ReadableRows, items: Rows, users: Rows | None = None, condition: str = "true"
) -> Rows:
    """Returns the distinct pairs (user_key, item_index) of the rows.

    Rows without a click count too.

    Args:
        rows: rows with user_key, item_key and the columns of `condition`.
        items: rows with item_key and item_index. Other items are left out.
        users: rows with the distinct user_key. Other users are left out. None keeps all users.
        condition: a condition in SQL; rows that do not fulfil it are left out.
    """
    counted = f"SELECT user_key, item_key FROM {{rows}} WHERE {condition}"
    tables = {"rows": rows, "items": items}
    if users is not None:
        tables["users"] = users
        counted = f"""
            SELECT /*+ BROADCAST(users) */ counted.*
            FROM ({counted}) AS counted SEMI JOIN {{users}} AS users USING (user_key)
        """
    pairs = f"SELECT DISTINCT user_key, item_index FROM ({counted}) AS rows JOIN {{items}} USING (item_key)"
    return query(pairs, **tables)


def has_weights(rows: Rows) -> bool:
    """Returns whether rows that candidates are computed from have weights."""
    return WEIGHT in (rows.column_names if isinstance(rows, pa.Table) else rows.columns)


def weight_of_clicks(rows: Rows) -> str:
    """Returns the SQL aggregate that counts clicks. If rows have weights, it adds the weights of the clicks.

    A float64 sum of float32 weights is exact if it is less than 2²⁹ times the smallest weight. Then the sum
    does not depend on the order of the rows.
    """
    return f"sum(CAST({WEIGHT} AS DOUBLE))" if has_weights(rows) else "count(1)"


def within(rows: ReadableRows, days: int | None, run_date: str, time_zone: str) -> Rows:
    """Returns the rows of the last `days` days, including the run date; all rows if `days` is None.

    The day of a row is the local day of its event_time or, if the log has no event_time, the date of its
    partition.

    Args:
        rows: rows with event_time or features_dt.
        days: number of days.
        run_date: the last day.
        time_zone: the IANA name of the zone of the days, `log.time_zone`.
    """
    if days is None:
        return whole(rows)
    if EVENT_TIME in (rows.column_names if isinstance(rows, pa.Table | StoredRows) else rows.columns):
        last = days_since_epoch(run_date)
        start, end = starts_of_days(np.array([last - days + 1, last + 1]), time_zone).tolist()
        return _between(rows, EVENT_TIME, start, end - 1)
    first = date.fromisoformat(run_date) - timedelta(days=days - 1)
    return _between(rows, FEATURES_DT, first.isoformat(), run_date)


def _between(rows: ReadableRows, name: str, low: int | str, high: int | str) -> Rows:
    """Returns the rows whose value in the column `name` is at least `low` and at most `high`."""
    if isinstance(rows, StoredRows):
        return query(f"SELECT * FROM {{rows}} WHERE {name} BETWEEN {low!r} AND {high!r}", rows=rows)
    if isinstance(rows, pa.Table):
        value = rows[name]
        return rows.filter(pc.and_(pc.greater_equal(value, low), pc.less_equal(value, high)))
    return rows.where(F.col(name).between(low, high))


def recency(rows: Rows) -> str:
    """Returns the name of the column that orders rows by time.

    The column is event_time or, if the log has no event_time, features_dt (the date of the partition).
    """
    names = rows.column_names if isinstance(rows, pa.Table) else rows.columns
    return EVENT_TIME if EVENT_TIME in names else FEATURES_DT
