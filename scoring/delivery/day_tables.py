"""The served table of a PostgreSQL sink: how the rows of a date are loaded, replaced and deleted.

A delivery first loads its rows into a new table, which no application reads. Then one transaction adds them
to the served table:

* A served table that this release creates is partitioned by date. The new table becomes its partition.
* A served table of an earlier release has no partitions. The rows of the new table are copied into it.

A session lock shows that a delivery still uses its new table. PostgreSQL releases the lock when the process
dies. So the next delivery recognizes and drops the tables that killed deliveries have left.
"""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from conf.errors import InfrastructureError
from scoring.delivery.postgresql import Connection, sql_state
from scoring.delivery.published_lists import EraseRequest
from scoring.requests import VARIANT
from storage import file_io

log = logging.getLogger("nightrank")

KEY = ("user_id", "position")
TYPES = {
    "user_id": "text",
    "position": "integer",
    "item_id": "text",
    "score": "real",
    "reason": "text",
    "model_version": "text",
}

# While a delivery waits for a lock, new readers wait too, at most this long. If PostgreSQL's own maintenance
# of a table blocks a lock, PostgreSQL cancels the maintenance after one second (deadlock_timeout).
_LOCK_TIMEOUT = "2s"
_PAUSE_S = 3.0  # seconds between two attempts to get the lock
_PATIENCE_S = 900.0
_ATTEMPTS_TO_DROP = 3
_BUSY = ("55P03", "40P01")  # SQLSTATE of a lock that was not granted in time, and of a deadlock

_LOCK_CLASS = 0x6E72  # the first of the two numbers of each session lock
_STAMP = "%Y%m%d%H%M%S"
_ABANDONED_AGE = timedelta(hours=24)
_USERS_PER_DELETE = 1000
_BOUND = re.compile(r"FOR VALUES IN \('(\d{4}-\d\d-\d\d)'\)")


@dataclass(frozen=True)
class UnservedTable:
    """A table that a delivery fills before its rows are served.

    Attributes:
        name: the name, with the schema if the served table has one.
        date: the date of all its rows, which is the default of its column `dt`.
    """

    name: str
    date: str

    @property
    def served_name(self) -> str:
        """Returns the name, without a schema, that the table gets as a partition of the served table."""
        target, _, _, number = self.name.rpartition(".")[2].rsplit("_", 3)
        return f"{target}_d{self.date.replace('-', '')}_{number}"


@dataclass(frozen=True)
class Replaced:
    """What a delivery has changed.

    Attributes:
        written: number of rows that were inserted or changed.
        deleted: number of rows that were deleted.
    """

    written: int
    deleted: int


class ServedTable(ABC):
    """The table that applications read.

    Attributes:
        name: its name, with or without a schema.
    """

    def __init__(self, database: Connection, name: str) -> None:
        self.database, self.name = database, name

    @abstractmethod
    def dates(self) -> list[str]:
        """Returns the dates of the table's rows, newest first."""

    @abstractmethod
    def is_served(self, date: str, digest: str, rows: int) -> bool:
        """Returns whether a delivery of these lists (by digest) is recorded, and all its rows are served."""

    @abstractmethod
    def create(self, table: UnservedTable, columns: Sequence[str]) -> None:
        """Creates the table, without an index, that a delivery fills before readers see its rows."""

    @abstractmethod
    def replace(self, table: UnservedTable, digest: str, rows: int, keep_dates: int) -> Replaced:
        """Replaces the served rows of a date with the rows of its new table, and deletes rows of old dates.

        Readers see all old rows of the date or all new rows.
        """

    @abstractmethod
    def delete_old(self, keep_dates: int) -> int:
        """Deletes the rows of all but the newest dates, and returns their number."""

    @abstractmethod
    def delete_users(self, users: Sequence[str], request: EraseRequest) -> int:
        """Deletes the rows of users, and returns their number."""

    def has_variant(self) -> bool:
        """Returns whether the table has the column `variant`."""
        query = (
            "SELECT 1 FROM pg_attribute "
            "WHERE attrelid = CAST(? AS regclass) AND attname = ? AND NOT attisdropped"
        )
        return bool(self.database.rows(query, [self.name, VARIANT]))

    def add_variant(self) -> None:
        """Adds the column `variant`."""
        self.database.execute(f"ALTER TABLE {self.name} ADD COLUMN IF NOT EXISTS {VARIANT} text")

    def require_keys(self, table: UnservedTable) -> None:
        """Creates the primary key of a new table. This fails if a row occurs twice.

        Raises:
            InfrastructureError: a row occurs twice.
        """
        try:
            self.database.execute(
                f"ALTER TABLE {table.name} ADD CONSTRAINT {table.served_name}_pkey "
                f"PRIMARY KEY (dt, {', '.join(KEY)})"
            )
        except Py4JJavaError as error:
            if sql_state(error) != "23505":
                raise
            message = str(error.java_exception.getMessage()).replace("\n", " ")
            raise InfrastructureError(
                f"{self.name}: a row was loaded twice: {message}",
                "run the job again: Spark ran a task twice. The served rows are unchanged",
            ) from error


def open_table(database: Connection, name: str) -> ServedTable:
    """Returns the served table. A missing table is created, with partitions by date."""
    query = """
        SELECT c.relkind, coalesce(p.partstrat, ''), coalesce(p.partnatts, 0), coalesce(a.attname, ''),
               coalesce(p.partdefid, 0), pg_has_role(c.relowner, 'USAGE')
        FROM pg_class c LEFT JOIN pg_partitioned_table p ON p.partrelid = c.oid
        LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = p.partattrs[0]
        WHERE c.oid = to_regclass(?)"""
    kind = database.rows(query, [name])
    if not kind:
        columns = ", ".join(f"{column} {kind} NOT NULL" for column, kind in TYPES.items())
        with database.transaction():
            # Without this lock, two first deliveries could both create the table, and one would fail.
            database.rows("SELECT pg_advisory_xact_lock(hashtext(CAST(? AS text)))", [name])
            database.execute(
                f"CREATE TABLE IF NOT EXISTS {name} "
                f"(dt date NOT NULL, {columns}, PRIMARY KEY (dt, {', '.join(KEY)})) PARTITION BY LIST (dt)"
            )
        kind = database.rows(query, [name])
    partitioned = PartitionedTable(database, name)
    # A partition of several dates cannot be replaced by the rows of one date, and only the owner can replace
    # partitions.
    if kind == [("p", "l", "1", "dt", "0", "t")] and all(day.date for day in partitioned.days()):
        return partitioned
    return PlainTable(database, name)


@dataclass(frozen=True)
class ServedDay:
    """A partition of the served table.

    Attributes:
        name: its name, quoted where necessary.
        date: its date; empty if the partition is not limited to one date, has partitions itself, or is in
            another database.
        record: what the delivery has recorded in the comment of the partition; empty if nothing.
    """

    name: str
    date: str
    record: dict[str, Any]

    @property
    def rows(self) -> int:
        """Returns the number of delivered rows; 0 if it is not recorded."""
        return int(self.record.get("rows", 0))


class PartitionedTable(ServedTable):
    """A table with one partition for each date. The comment of a partition records its delivery."""

    def days(self) -> list[ServedDay]:
        """Returns the partitions of the served table, newest first."""
        query = """
            SELECT CAST(CAST(c.oid AS regclass) AS text),
                   CASE WHEN c.relkind = 'r' THEN pg_get_expr(c.relpartbound, c.oid) ELSE '' END,
                   coalesce(obj_description(c.oid, 'pg_class'), '')
            FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
            WHERE i.inhparent = CAST(? AS regclass)"""
        days = []
        for name, bound, comment in self.database.rows(query, [self.name]):
            if bound is None:
                continue  # another delivery has dropped the partition since this query began
            match = _BOUND.fullmatch(str(bound))
            days.append(ServedDay(str(name), match[1] if match else "", _parsed(str(comment))))
        return sorted(days, key=lambda day: day.date, reverse=True)

    def dates(self) -> list[str]:
        """Returns the dates of the partitions that have rows, newest first."""
        return [day.date for day in self.days() if self._has_rows(day.date)]

    def _has_rows(self, date: str) -> bool:
        # Another delivery may replace the partition at any time, so the query names the whole table.
        return bool(self.database.rows(f"SELECT 1 FROM {self.name} WHERE dt = DATE '{date}' LIMIT 1"))

    def is_served(self, date: str, digest: str, rows: int) -> bool:
        """Returns whether the partition of the date has `rows` rows, and its record names this digest."""
        for day in self.days():
            if day.date == date and day.record.get("lists") == digest:
                query = f"SELECT count(*) FROM {self.name} WHERE dt = DATE '{date}'"
                return self.database.rows(query) == [(str(rows),)]
        return False

    def create(self, table: UnservedTable, columns: Sequence[str]) -> None:
        """Creates a table that can become a partition."""
        # With this CHECK, PostgreSQL attaches the table without reading its rows. Rows of the table are also
        # written to the write-ahead log, because an unlogged table would be empty after a crash of the
        # server.
        self.database.execute(
            f"CREATE TABLE {table.name} (LIKE {self.name} INCLUDING DEFAULTS INCLUDING CONSTRAINTS "
            f"INCLUDING STORAGE INCLUDING GENERATED, CHECK (dt = DATE '{table.date}'))"
        )
        self.database.execute(f"ALTER TABLE {table.name} ALTER COLUMN dt SET DEFAULT DATE '{table.date}'")

    def replace(self, table: UnservedTable, digest: str, rows: int, keep_dates: int) -> Replaced:
        """Attaches the new table as soon as transactions that use the served table allow it.

        Raises:
            InfrastructureError: other transactions still used the table after `_PATIENCE_S` seconds.
        """
        self._create_indexes(table)
        self.database.execute(f"ANALYZE {table.name}")
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                deleted = self._attach(table, digest, rows)
                break
            except Py4JJavaError as error:
                if sql_state(error) not in _BUSY:
                    raise
                sessions = self._sessions()
                if time.monotonic() > deadline:
                    raise InfrastructureError(
                        f"{self.name}: the rows of {table.date} were not replaced in {_PATIENCE_S:.0f} s, "
                        f"because other transactions use the table: {sessions}",
                        "end these transactions, and run the job again. The served rows are unchanged",
                    ) from error
            log.info("%s: the delivery waits for transactions that use the table: %s", self.name, sessions)
            time.sleep(_PAUSE_S)
        return Replaced(rows, deleted + self.delete_old(keep_dates))

    def _create_indexes(self, table: UnservedTable) -> None:
        """Creates on the new table the indexes that an administrator has added to the served table."""
        query = """
            SELECT CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END,
                   substring(pg_get_indexdef(i.indexrelid) FROM ' USING .*')
            FROM pg_index i WHERE i.indrelid = CAST(? AS regclass) AND NOT i.indisprimary"""
        for unique, definition in self.database.rows(query, [self.name]):
            self.database.execute(f"CREATE {unique}INDEX ON {table.name}{definition}")

    def _attach(self, table: UnservedTable, digest: str, rows: int) -> int:
        """Makes the new table the partition of its date, in one transaction.

        Returns:
            The number of rows of the replaced partition.
        """
        schema, _, _ = self.name.rpartition(".")
        served = f"{schema}.{table.served_name}" if schema else table.served_name
        record = {"nightrank": 1, "lists": digest, "rows": rows, "delivered_at": file_io.utc_now()}
        is_new = table.date not in [day.date for day in self.days()]
        # Both locks make concurrent deliveries wait for each other. Only the second lock makes readers wait.
        mode = "SHARE UPDATE EXCLUSIVE" if is_new else "ACCESS EXCLUSIVE"
        with self.database.transaction():
            self.database.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
            self.database.execute(f"LOCK TABLE ONLY {self.name} IN {mode} MODE")
            old = [day for day in self.days() if day.date == table.date]
            for day in old:
                self.database.execute(f"DROP TABLE {day.name}")
            self.database.execute(f"ALTER TABLE {table.name} RENAME TO {table.served_name}")
            self.database.execute(
                f"ALTER TABLE {self.name} ATTACH PARTITION {served} FOR VALUES IN ('{table.date}')"
            )
            self.database.execute(f"COMMENT ON TABLE {served} IS {_literal(json.dumps(record))}")
        return sum(day.rows for day in old)

    def _sessions(self) -> str:
        """Describes the sessions that have a lock on the table."""
        query = """
            SELECT DISTINCT a.pid, coalesce(a.usename, ''), coalesce(a.application_name, ''),
                   coalesce(a.state, ''), extract(epoch FROM now() - a.xact_start)::integer
            FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
            WHERE l.relation = CAST(? AS regclass) AND l.granted AND a.pid <> pg_backend_pid()"""
        sessions = self.database.rows(query, [self.name])
        return "; ".join(
            f"process {pid} of {user} ({application or 'no application_name'}), {state}, for {seconds} s"
            for pid, user, application, state, seconds in sessions
        )

    def delete_old(self, keep_dates: int) -> int:
        """Drops the partitions of old dates, unless transactions use the table."""
        for _ in range(_ATTEMPTS_TO_DROP):
            kept = self.dates()[:keep_dates]
            old = [day for day in self.days() if kept and day.date < kept[-1]]
            if not old:
                return 0
            try:
                with self.database.transaction():
                    self.database.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
                    for day in old:
                        self.database.execute(f"DROP TABLE IF EXISTS {day.name}")
                return sum(day.rows for day in old)
            except Py4JJavaError as error:
                if sql_state(error) not in _BUSY:
                    raise
            time.sleep(_PAUSE_S)
        dates = [day.date for day in old]
        log.warning(
            "%s: the rows of %s stay until the next delivery, because transactions use the table: %s",
            self.name,
            dates,
            self._sessions(),
        )
        return 0

    def delete_users(self, users: Sequence[str], request: EraseRequest) -> int:
        """Deletes rows in all partitions, and updates the records in the comments of the partitions."""
        deleted = 0
        for day in self.days():
            with self.database.transaction():
                of_day = _delete_users(self.database, day.name, users)
                digest = request.digests.get(str(day.record.get("lists")))
                if day.record and (of_day or digest):
                    record = {**day.record, "rows": day.rows - of_day}
                    record["lists"] = digest or record.get("lists")
                    comment = _literal(json.dumps(record))
                    self.database.execute(f"COMMENT ON TABLE {day.name} IS {comment}")
            deleted += of_day
        return deleted


def _parsed(comment: str) -> dict[str, Any]:
    """Parses the record of a delivery in a partition's comment; returns {} if there is no such record."""
    try:
        record = json.loads(comment)
    except ValueError:
        return {}
    return record if isinstance(record, dict) and record.get("nightrank") == 1 else {}


def _literal(text: str) -> str:
    """Returns a string as a SQL literal. The string must not contain a backslash."""
    return "'" + text.replace("'", "''") + "'"


class PlainTable(ServedTable):
    """A table that is not partitioned, or whose partitions a delivery cannot replace."""

    def dates(self) -> list[str]:
        """Returns the dates of the rows, newest first."""
        # Finds each date by one lookup in the index of the primary key.
        dates = self.database.rows(
            f"WITH RECURSIVE dates AS (SELECT max(dt) AS dt FROM {self.name} UNION ALL "
            f"SELECT (SELECT max(dt) FROM {self.name} WHERE dt < dates.dt) FROM dates "
            "WHERE dates.dt IS NOT NULL) SELECT dt FROM dates WHERE dt IS NOT NULL"
        )
        return [str(date) for (date,) in dates]

    def is_served(self, date: str, digest: str, rows: int) -> bool:
        """Returns False, because this table has no record of its deliveries.

        `replace` compares all rows instead.
        """
        return False

    def create(self, table: UnservedTable, columns: Sequence[str]) -> None:
        """Creates an unlogged table, because it exists only until its rows are copied.

        The table always has the column `variant`, even if the lists have none. An earlier experiment or a
        user may have added this column to the served table, and then `replace` copies it.
        """
        typed = ", ".join(f"{name} {TYPES.get(name, 'text')}" for name in dict.fromkeys((*columns, VARIANT)))
        self.database.execute(
            f"CREATE UNLOGGED TABLE {table.name} (dt date NOT NULL DEFAULT DATE '{table.date}', {typed})"
        )

    def replace(self, table: UnservedTable, digest: str, rows: int, keep_dates: int) -> Replaced:
        """Copies changed rows to the served table in one transaction, and then drops the new table."""
        database, target, new = self.database, self.name, table.name
        database.execute(f"ANALYZE {new}")
        columns = [*TYPES, *([VARIANT] if self.has_variant() else [])]
        names = ", ".join(name for name in columns if name not in KEY)
        changed = ", ".join(f"{name} = EXCLUDED.{name}" for name in columns if name not in KEY)
        before, after = (
            ", ".join(f"{side}.{name}" for name in columns if name not in KEY) for side in ("t", "EXCLUDED")
        )
        same_key = " AND ".join(f"s.{name} = t.{name}" for name in KEY)
        with database.transaction():
            # This lock makes concurrent deliveries wait for each other. Readers do not wait.
            database.execute(f"LOCK TABLE {target} IN SHARE ROW EXCLUSIVE MODE")
            # PostgreSQL's statistics do not contain the newest date yet. So the planner expects no rows of
            # this date, and it would scan the new table once for each row, in a nested loop.
            database.execute("SET LOCAL enable_nestloop = off")
            deleted = database.execute(
                f"DELETE FROM {target} AS t WHERE dt = CAST(? AS date) "
                f"AND NOT EXISTS (SELECT 1 FROM {new} AS s WHERE {same_key})",
                [table.date],
            )
            written = database.execute(
                f"INSERT INTO {target} AS t (dt, {', '.join(KEY)}, {names}) "
                f"SELECT dt, {', '.join(KEY)}, {names} FROM {new} "
                f"ON CONFLICT (dt, {', '.join(KEY)}) DO UPDATE SET {changed} "
                f"WHERE ({before}) IS DISTINCT FROM ({after})"
            )
            deleted += self.delete_old(keep_dates)
            database.execute(f"DROP TABLE {new}")
        return Replaced(written, deleted)

    def delete_old(self, keep_dates: int) -> int:
        """Deletes the rows of old dates."""
        kept = self.dates()[:keep_dates]
        if not kept:
            return 0
        return self.database.execute(f"DELETE FROM {self.name} WHERE dt < CAST(? AS date)", [kept[-1]])

    def delete_users(self, users: Sequence[str], request: EraseRequest) -> int:
        """Deletes the rows of users."""
        return _delete_users(self.database, self.name, users)


# The code below names, locks and drops the tables that deliveries fill before readers see their rows.


@contextmanager
def new_table(served: ServedTable, date: str) -> Iterator[UnservedTable]:
    """Names a new table, and holds its session lock during a `with` block.

    If the block raises an error, the table is dropped.
    """
    database, number = served.database, uuid.uuid4().hex[:8]
    table = UnservedTable(f"{served.name}_ld_{datetime.now(UTC).strftime(_STAMP)}_{number}", date)
    _try_lock(database, number)  # no other session has this lock, because the number is random
    try:
        yield table
    except BaseException:
        _drop_after_failure(database, table)
        raise
    finally:
        _unlock(database, number)


def _drop_after_failure(database: Connection, table: UnservedTable) -> None:
    """Drops a new table. If dropping fails too, that error is only logged."""
    try:
        database.execute(f"DROP TABLE IF EXISTS {table.name}")
    except Py4JError as error:
        log.warning("the table %s cannot be dropped now; the next delivery drops it: %s", table.name, error)


def drop_abandoned(served: ServedTable) -> None:
    """Drops the tables that killed deliveries have left.

    The tables of earlier releases (`_st_`) have no lock. They are dropped when they are older than a day.
    """
    database, limit = served.database, (datetime.now(UTC) - _ABANDONED_AGE).strftime(_STAMP)
    for name, (kind, stamp, number) in _unserved_tables(database, served.name).items():
        is_dead = kind == "ld" and _try_lock(database, number)
        try:
            if is_dead or stamp < limit:
                _drop_now(database, name)
        finally:
            if is_dead:
                _unlock(database, number)


def _drop_now(database: Connection, name: str) -> None:
    """Drops a table unless a task of a killed job still uses it."""
    try:
        with database.transaction():
            database.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
            database.execute(f"DROP TABLE IF EXISTS {name}")
    except Py4JJavaError as error:
        if sql_state(error) not in _BUSY:
            raise
        log.warning("the table %s is still in use; the next delivery drops it", name)


def delete_users(database: Connection, name: str, request: EraseRequest) -> int:
    """Deletes rows of users from the served table and from new tables. Returns the number of rows.

    Args:
        database: the connection.
        name: the served table, which may not exist.
        request: the users.
    """
    [(exists,)] = database.rows("SELECT to_regclass(?)", [name])
    users = sorted(request.users)
    deleted = open_table(database, name).delete_users(users, request) if exists else 0
    return deleted + sum(_delete_users(database, table, users) for table in _unserved_tables(database, name))


def _delete_users(database: Connection, table: str, users: Sequence[str]) -> int:
    deleted = 0
    for start in range(0, len(users), _USERS_PER_DELETE):
        part = users[start : start + _USERS_PER_DELETE]
        places = ", ".join("?" * len(part))
        deleted += database.execute(f"DELETE FROM {table} WHERE user_id IN ({places})", part)
    return deleted


def _unserved_tables(database: Connection, target: str) -> dict[str, tuple[str, str, str]]:
    """Maps each table that a delivery has filled, but not served, to kind, time and number in its name."""
    schema, _, name = target.rpartition(".")
    tables = database.rows(
        "SELECT tablename FROM pg_tables WHERE schemaname = coalesce(nullif(?, ''), current_schema())",
        [schema],
    )
    pattern = re.compile(re.escape(name) + r"_(ld|st)_(\d{14})_([0-9a-f]{8})")
    matches: Iterable[re.Match[str] | None] = (pattern.fullmatch(str(table)) for (table,) in tables)
    prefix = f"{schema}." if schema else ""
    return {f"{prefix}{match[0]}": (match[1], match[2], match[3]) for match in matches if match}


def _try_lock(database: Connection, number: str) -> bool:
    """Takes the session lock of the new table with this number, unless another session has it."""
    query = f"SELECT pg_try_advisory_lock({_LOCK_CLASS}, {_signed(number)})"
    return database.rows(query) == [("t",)]


def _unlock(database: Connection, number: str) -> None:
    try:
        database.rows(f"SELECT pg_advisory_unlock({_LOCK_CLASS}, {_signed(number)})")
    except Py4JError as error:  # PostgreSQL also releases the lock when the session ends
        log.debug("the lock %s was not released: %s", number, error)


def _signed(number: str) -> int:
    """Converts 8 hex digits to a signed 32-bit integer, which is PostgreSQL's type of lock numbers."""
    return int.from_bytes(bytes.fromhex(number), "big", signed=True)
