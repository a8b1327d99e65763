"""The staging tables of the JDBC sink: one for each attempt at a delivery."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from scoring.delivery.postgresql import Connection

STAMP = "%Y%m%d%H%M%S"  # the time in the name of a staging table
_STAGING_AGE = timedelta(hours=24)
_USERS_PER_DELETE = 1000


def drop_abandoned(database: Connection, target: str) -> None:
    """Drops the staging tables that killed attempts left behind more than a day ago.

    Newer staging tables may still be in use.
    """
    limit = (datetime.now(UTC) - _STAGING_AGE).strftime(STAMP)
    for table, stamp in staging_tables(database, target).items():
        if stamp < limit:
            database.execute(f"DROP TABLE IF EXISTS {table}")


def staging_tables(database: Connection, target: str) -> dict[str, str]:
    """Maps each staging table of a served table to the time in its name."""
    schema, _, name = target.rpartition(".")
    tables = database.rows(
        "SELECT tablename FROM pg_tables WHERE schemaname = coalesce(nullif(?, ''), current_schema())",
        [schema],
    )
    staged = (re.fullmatch(re.escape(name) + r"_st_(\d{14})_[0-9a-f]{8}", str(table)) for (table,) in tables)
    return {f"{schema + '.' if schema else ''}{match[0]}": match[1] for match in staged if match}


def delete_users(database: Connection, target: str, users: Iterable[str]) -> int:
    """Deletes the rows of users from the served table and its staging tables, and returns their number.

    Args:
        database: the connection.
        target: the served table, which may not exist.
        users: the ids of the users.
    """
    [(exists,)] = database.rows("SELECT to_regclass(?)", [target])
    ids, deleted = sorted(users), 0
    for table in [*([target] if exists else []), *staging_tables(database, target)]:
        for start in range(0, len(ids), _USERS_PER_DELETE):
            part = ids[start : start + _USERS_PER_DELETE]
            places = ", ".join("?" * len(part))
            deleted += database.execute(f"DELETE FROM {table} WHERE user_id IN ({places})", part)
    return deleted
