"""The JDBC sink: delivers the lists of a run date to a PostgreSQL table.

Spark workers write the lists to a staging table, which only this attempt uses. Then one transaction replaces
the rows of the run date in the served table.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pydantic import Field, field_validator

from conf.errors import ConfigError, DataError, InfrastructureError
from conf.lazy_pyspark import F
from conf.types import PositiveInt, Secret, SinkSettings
from scoring.delivery.postgresql import (
    CANNOT_HOLD,
    DRIVER,
    STAMP,
    URL_PARAMETERS,
    Connection,
    connect,
    connection_properties,
    dates_of,
    delete_users,
    drop_abandoned,
    refused_parameters,
)
from scoring.delivery.published_lists import COLUMNS, Delivered, Erased, EraseRequest, PublishedLists
from scoring.delivery.secrets import Credentials, read_credentials
from scoring.requests import VARIANT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("nightrank")

_TYPES = {
    "user_id": "text",
    "position": "integer",
    "item_id": "text",
    "score": "real",
    "reason": "text",
    "model_version": "text",
}
_KEY = ("user_id", "position")
_BATCH_ROWS = 10_000
_UNTIL_VACUUM = "PostgreSQL keeps the bytes of deleted rows until the next VACUUM of the table"


# PostgreSQL silently truncates names to 63 bytes. The limit leaves room for suffixes of additional tables.
_TABLE = re.compile(r"([a-z_][a-z0-9_]{0,39}\.)?[a-z_][a-z0-9_]{0,29}")


class Settings(SinkSettings):
    """A PostgreSQL table of lists. Each delivery replaces the rows of one date in one transaction."""

    url: str = Field(
        description="jdbc:postgresql://host:port/database, without user and password. Without a parameter "
        "`sslmode`, the connection is encrypted, and the sink checks the server's certificate "
        "(verify-full)."
    )
    table: str = Field(
        description="Name of the table, as table or schema.table. If the table is missing, it is created; "
        "the schema must exist."
    )
    user: Secret = Field(description="Where to read the name of the database user.")
    password: Secret = Field(description="Where to read the password.")
    keep_dates: PositiveInt = Field(
        default=2, description="Number of dates that the table keeps. The lists of older dates are deleted."
    )
    connections: PositiveInt = Field(default=8, description="Number of tasks that write at the same time.")
    driver_jar: str | None = Field(
        default=None,
        description="Path of the jar of the JDBC driver. Null: the driver is already on Spark's class "
        "path, for example because of the option --packages of spark-submit.",
    )

    @field_validator("url")
    @classmethod
    def _postgresql(cls, value: str) -> str:
        if not value.startswith("jdbc:postgresql:"):
            raise ValueError("it must begin with jdbc:postgresql:")
        if refused := refused_parameters(value):
            raise ValueError(f"it must not have {refused}, only the parameters {sorted(URL_PARAMETERS)}")
        return value

    @field_validator("table")
    @classmethod
    def _identifier(cls, value: str) -> str:
        if not _TABLE.fullmatch(value):
            raise ValueError(
                "write a table as name or schema.name, with lower-case letters, digits and _; "
                "the name may have at most 30 characters"
            )
        return value


@dataclass(frozen=True)
class DeliveryTables:
    """The names of the two tables of a delivery.

    Attributes:
        target: the served table, which the website or app reads.
        staging: the staging table, a temporary table of this attempt. No other process reads it.
        columns: the columns of the lists: those of _TYPES, and `variant` if the served table has it.
    """

    target: str
    staging: str
    columns: tuple[str, ...]

    @property
    def values(self) -> list[str]:
        """Returns the columns that are not in the primary key."""
        return [name for name in self.columns if name not in _KEY]


def check(sink: Settings) -> None:
    """Raises ConfigError if the sink's credentials cannot be read or its local driver is missing."""
    read_credentials(sink.name, sink.user, sink.password)
    jar = sink.driver_jar
    if jar is not None and "://" not in jar and not os.path.isfile(os.path.expanduser(jar)):
        raise ConfigError(
            f"deliver.sinks: driver_jar={jar} of {sink.name} does not exist", "correct the path"
        )


def deliver(sink: Settings, lists: PublishedLists) -> Delivered:
    """Replaces the rows of the lists' date in the sink's table, and deletes rows of old dates.

    One transaction does both. Only the newest `sink.keep_dates` dates remain. If the lists' date is older
    than these dates, nothing is delivered. If the process is killed, the table has either all old rows or all
    new rows. The staging table of a killed process remains; the first delivery more than a day later drops
    it.

    The table has the columns dt, user_id, position, item_id, score, reason and model_version. Its primary key
    is (dt, user_id, position). Only changed rows are written. The first lists of an experiment add the column
    `variant`, which is null for lists without an experiment.

    Args:
        sink: the settings of the sink.
        lists: the published lists of the date.

    Raises:
        ConfigError: the driver or the credentials are missing, or PostgreSQL rejects the user, the database
            or the table.
        DataError: the table cannot store a value of the lists.
        InfrastructureError: PostgreSQL cannot be reached, or rows in the staging table are missing or
            repeated.
    """
    credentials = read_credentials(sink.name, sink.user, sink.password)
    staging = f"{sink.table}_st_{datetime.now(UTC).strftime(STAMP)}_{uuid.uuid4().hex[:8]}"
    variant = [VARIANT] if VARIANT in lists.frame.columns else []
    rows = lists.frame.select(*COLUMNS, "model_version", *variant)
    with connect(rows.sparkSession, sink, credentials) as database:
        _make_target(database, sink.table)
        rows = _like_target(database, sink.table, rows)
        tables = DeliveryTables(sink.table, staging, tuple(rows.columns))
        drop_abandoned(database, tables.target)
        kept = sorted({*dates_of(database, tables.target), lists.run_date}, reverse=True)[: sink.keep_dates]
        if lists.run_date not in kept:
            log.warning(
                "%s keeps the dates %s: the lists of %s are not delivered", sink.name, kept, lists.run_date
            )
            return Delivered(f"{sink.url} {sink.table}", 0, 0, 0)
        columns = ", ".join(f"{name} {_TYPES.get(name, 'text')}" for name in tables.columns)
        database.execute(f"CREATE UNLOGGED TABLE {tables.staging} ({columns})")
        try:
            _stage(sink, credentials, rows, tables.staging)
            _require_all(database, sink, tables.staging, lists.manifest.rows)
            database.execute(f"ANALYZE {tables.staging}")
            written, deleted = _replace(database, tables, lists.run_date, sink.keep_dates)
        except BaseException:
            _drop(database, tables.staging)
            raise
    return Delivered(f"{sink.url} {sink.table}", lists.manifest.rows, written, deleted)


def erase(sink: Settings, request: EraseRequest) -> Erased:
    """Deletes the rows of users from the served table, for all dates, and from tables of killed deliveries.

    Raises:
        ConfigError, InfrastructureError: see `deliver`.
    """
    credentials = read_credentials(sink.name, sink.user, sink.password)
    with connect(request.open_session(), sink, credentials) as database:
        deleted = delete_users(database, sink.table, request.users)
    return Erased(f"{sink.url} {sink.table}", deleted, _UNTIL_VACUUM if deleted else "")


def _make_target(database: Connection, target: str) -> None:
    """Creates the served table if it does not exist."""
    columns = ", ".join(f"{name} {kind} NOT NULL" for name, kind in _TYPES.items())
    database.execute(
        f"CREATE TABLE IF NOT EXISTS {target} "
        f"(dt date NOT NULL, {columns}, PRIMARY KEY (dt, {', '.join(_KEY)}))"
    )


def _like_target(database: Connection, target: str, rows: DataFrame) -> DataFrame:
    """Adds the column `variant` to the served table or (as nulls) to the rows, if only one of them has it."""
    query = (
        "SELECT 1 FROM pg_attribute WHERE attrelid = CAST(? AS regclass) AND attname = ? AND NOT attisdropped"
    )
    has_variant = bool(database.rows(query, [target, VARIANT]))
    if has_variant and VARIANT not in rows.columns:
        return rows.withColumn(VARIANT, F.lit(None).cast("string"))
    if VARIANT in rows.columns and not has_variant:
        database.execute(f"ALTER TABLE {target} ADD COLUMN IF NOT EXISTS {VARIANT} text")
    return rows


def _stage(sink: Settings, credentials: Credentials, rows: DataFrame, staging: str) -> None:
    """Fills the staging table with Spark's JDBC writer.

    Each task has one connection and one transaction.
    """
    options: dict[str, Any] = {
        "url": sink.url,
        "dbtable": staging,
        "driver": DRIVER,
        **connection_properties(credentials),
        "numPartitions": sink.connections,
        "batchsize": _BATCH_ROWS,
        "reWriteBatchedInserts": "true",  # makes the driver send many rows in one INSERT
    }
    try:
        rows.write.format("jdbc").options(**options).mode("append").save()
    except Py4JJavaError as error:
        # A task may report an error without its cause, because some threads of Spark cannot load PostgreSQL's
        # classes.
        texts = [F.col(name) for name, kind in _TYPES.items() if kind == "text"]
        has_nul = reduce(or_, (F.contains(text, F.lit("\0")) for text in texts))
        wrong_row = rows.where(has_nul).select(*texts).first()
        if wrong_row is None:
            raise
        raise DataError(
            f"sink {sink.name}: {wrong_row.asDict()} contains the character U+0000, "
            "which PostgreSQL does not allow in text",
            CANNOT_HOLD,
        ) from error


def _require_all(database: Connection, sink: Settings, staging: str, expected: int) -> None:
    """Checks that the staging table has each row exactly once.

    If Spark runs a task twice, the task may write its rows twice.
    """
    ((rows, keys),) = database.rows(f"SELECT count(*), count(DISTINCT ({', '.join(_KEY)})) FROM {staging}")
    if (rows, keys) != (str(expected), str(expected)):
        raise InfrastructureError(
            f"sink {sink.name}: the staging table has {rows} rows with {keys} distinct keys, "
            f"but the lists have {expected} rows",
            "run the job again: a task ran twice, or rows were lost. The served rows are unchanged",
        )


def _replace(database: Connection, tables: DeliveryTables, run_date: str, keep_dates: int) -> tuple[int, int]:
    """Replaces the rows of the date by the rows of the staging table, in one transaction.

    Returns:
        The number of inserted or changed rows, and the number of deleted rows.
    """
    target, staging = tables.target, tables.staging
    values = ", ".join(tables.values)
    changed = ", ".join(f"{name} = EXCLUDED.{name}" for name in tables.values)
    old, new = (", ".join(f"{table}.{name}" for name in tables.values) for table in ("t", "EXCLUDED"))
    same_key = " AND ".join(f"s.{name} = t.{name}" for name in _KEY)
    with database.transaction():
        # This lock makes concurrent deliveries wait for each other. Readers do not wait.
        database.execute(f"LOCK TABLE {target} IN SHARE ROW EXCLUSIVE MODE")
        # PostgreSQL's statistics do not contain the newest date yet, so the planner expects no rows of this
        # date. With a nested loop, it would scan the staging table once for each row.
        database.execute("SET LOCAL enable_nestloop = off")
        deleted = database.execute(
            f"DELETE FROM {target} AS t WHERE dt = CAST(? AS date) "
            f"AND NOT EXISTS (SELECT 1 FROM {staging} AS s WHERE {same_key})",
            [run_date],
        )
        written = database.execute(
            f"INSERT INTO {target} AS t (dt, {', '.join(_KEY)}, {values}) "
            f"SELECT CAST(? AS date), {', '.join(_KEY)}, {values} FROM {staging} "
            f"ON CONFLICT (dt, {', '.join(_KEY)}) DO UPDATE SET {changed} "
            f"WHERE ({old}) IS DISTINCT FROM ({new})",
            [run_date],
        )
        kept = dates_of(database, target)[:keep_dates]
        if kept:
            deleted += database.execute(f"DELETE FROM {target} WHERE dt < CAST(? AS date)", [kept[-1]])
        database.execute(f"DROP TABLE {staging}")
    return written, deleted


def _drop(database: Connection, staging: str) -> None:
    """Drops the staging table after a failure. An error of this statement is only logged."""
    try:
        database.execute(f"DROP TABLE IF EXISTS {staging}")
    except Py4JJavaError as error:
        log.warning(
            "%s stays until a later delivery drops it: %s", staging, error.java_exception.getMessage()
        )
