"""Selects the feature rows that candidates are computed from, such as the clicks of the last days."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.lazy_imports import F
from conf.names import days_since_epoch
from conf.time_notation import zone_of
from etl.raw.time_text import starts_of_days
from scoring.requests import FEATURES_DT
from spark.rows import ReadableRows, Rows, StoredRows, query, records, whole
from storage.feature_spec import EVENT_TIME, ITEM_KEY, LABEL, USER_KEY, WEIGHT

# Columns of a feature table from which candidates are computed. EVENT_TIME is also used if the log has it,
# and WEIGHT if rows have weights.
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

    Rows without a click are included.

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
    """Returns whether the rows of clicks, from which candidates are computed, have a column of weights."""
    return WEIGHT in (rows.column_names if isinstance(rows, pa.Table) else rows.columns)


def weight_of_clicks(rows: Rows) -> str:
    """Returns the SQL aggregate that counts clicks or, if rows have weights, adds up the clicks' weights.

    A float64 sum of float32 weights is exact if it is less than 2²⁹ times the smallest weight. Then the sum
    does not depend on the order of the rows.
    """
    return f"sum(CAST({WEIGHT} AS DOUBLE))" if has_weights(rows) else "count(1)"


def within(rows: ReadableRows, days: int | None, last_day: str, time_zone: str) -> Rows:
    """Returns the rows of `days` days up to and including `last_day`; all rows if `days` is None.

    The day of a row is the local day of its event_time or, if the log has no event_time, the date of its
    partition.

    Args:
        rows: rows with event_time or features_dt.
        days: number of days.
        last_day: the last day.
        time_zone: the IANA name of the zone of the days, `log.time_zone`.
    """
    if days is None:
        return whole(rows)
    if EVENT_TIME in (rows.column_names if isinstance(rows, pa.Table | StoredRows) else rows.columns):
        last = days_since_epoch(last_day)
        start, end = starts_of_days(np.array([last - days + 1, last + 1]), time_zone).tolist()
        return _between(rows, EVENT_TIME, start, end - 1)
    return _between(rows, FEATURES_DT, first_day(days, last_day), last_day)


def first_day(days: int, last_day: str) -> str:
    """Returns the first of `days` days up to and including `last_day`."""
    return (date.fromisoformat(last_day) - timedelta(days=days - 1)).isoformat()


def last_days(rows: ReadableRows, run_date: str, time_zone: str) -> tuple[str | None, str | None]:
    """Returns the last local day with a row, and the last local day with a click; None without such a row.

    Args:
        rows: rows with event_time and label. Rows after the run date are left out.
        run_date: the run date.
        time_zone: the IANA name of the zone of the days, `log.time_zone`.
    """
    (end,) = starts_of_days(np.array([days_since_epoch(run_date) + 1]), time_zone).tolist()
    text = f"""
        SELECT max({EVENT_TIME}) AS last_row, max(CASE WHEN {LABEL} = 1 THEN {EVENT_TIME} END) AS last_click
        FROM {{rows}} WHERE {EVENT_TIME} < {end}
    """
    (latest,) = records(query(text, rows=rows))
    return _day(latest["last_row"], time_zone), _day(latest["last_click"], time_zone)


def _day(microseconds: int | None, time_zone: str) -> str | None:
    """Returns the local day of an instant in µs since 1970-01-01 00:00 UTC."""
    if microseconds is None:
        return None
    instant = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    return instant.astimezone(zone_of(time_zone)).date().isoformat()


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
