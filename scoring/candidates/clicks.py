"""Selects the feature rows that candidates are computed from, such as the clicks of the last days."""

from __future__ import annotations

from datetime import date, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from conf.lazy_imports import F
from conf.names import days_since_epoch
from scoring.requests import FEATURES_DT
from spark.rows import ReadableRows, Rows, StoredRows, query, whole
from storage.feature_spec import EVENT_TIME, ITEM_KEY, LABEL, USER_KEY, WEIGHT

# Columns of a feature table that candidates are computed from; also EVENT_TIME if the log has one, and WEIGHT
# if rows have weights.
CLICK_COLUMNS = (USER_KEY, ITEM_KEY, LABEL)

_DAY_US = 86_400_000_000


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


def within(rows: ReadableRows, days: int | None, run_date: str) -> Rows:
    """Returns the rows of the last `days` days, including the run date; all rows if `days` is None.

    The day of a row is the day of its event_time or, if the log has no event_time, the date of its partition.
    """
    if days is None:
        return whole(rows)
    first = date.fromisoformat(run_date) - timedelta(days=days - 1)
    if isinstance(rows, StoredRows):
        return query(f"SELECT * FROM {{rows}} WHERE {_of_days(rows, first, days, run_date)}", rows=rows)
    if isinstance(rows, pa.Table):
        return _within_table(rows, first, days, run_date)
    if EVENT_TIME in rows.columns:
        since = days_since_epoch(first) * _DAY_US
        return rows.where(F.col(EVENT_TIME).between(since, since + days * _DAY_US - 1))
    return rows.where(F.col(FEATURES_DT).between(first.isoformat(), run_date))


def _of_days(rows: StoredRows, first: date, days: int, run_date: str) -> str:
    """Returns the condition of `within` in SQL. `first` is the earliest of these days."""
    if EVENT_TIME in rows.column_names:
        since = days_since_epoch(first) * _DAY_US
        return f"{EVENT_TIME} BETWEEN {since} AND {since + days * _DAY_US - 1}"
    return f"{FEATURES_DT} BETWEEN '{first.isoformat()}' AND '{run_date}'"


def _within_table(rows: pa.Table, first: date, days: int, run_date: str) -> pa.Table:
    """Implements `within` for a table. `first` is the earliest of these days."""
    if EVENT_TIME in rows.column_names:
        since = days_since_epoch(first) * _DAY_US
        time = rows[EVENT_TIME]
        return rows.filter(pc.and_(pc.greater_equal(time, since), pc.less(time, since + days * _DAY_US)))
    day = rows[FEATURES_DT]
    return rows.filter(pc.and_(pc.greater_equal(day, first.isoformat()), pc.less_equal(day, run_date)))


def recency(rows: Rows) -> str:
    """Returns the name of the column that orders rows by time.

    The column is event_time or, if the log has no event_time, features_dt (the date of the partition).
    """
    names = rows.column_names if isinstance(rows, pa.Table) else rows.columns
    return EVENT_TIME if EVENT_TIME in names else FEATURES_DT
