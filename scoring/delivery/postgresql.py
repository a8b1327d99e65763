"""Connects Spark's driver to PostgreSQL, through the JDBC driver that the workers also use."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from py4j.protocol import Py4JJavaError

from conf.errors import ConfigError, DataError, InfrastructureError, NightrankError
from scoring.delivery.secrets import Credentials

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER = "org.postgresql.Driver"
# Settings of connections (org.postgresql.PGProperty). A parameter of the URL replaces a setting.
_CONNECTION = {
    "sslmode": "verify-full",  # the driver's default accepts connections without encryption
    "connectTimeout": "20",
    "loginTimeout": "60",
    # Timeout of an answer: longer than the transaction of a large delivery.
    "socketTimeout": "3600",
    "tcpKeepAlive": "true",
}
# The parameters that a URL may have. Other parameters name Java classes (socketFactory, sslfactory, …), files
# to write (loggerFile) or passwords. With them, a configuration could run code or change files.
URL_PARAMETERS = (
    *("sslmode", "sslrootcert", "sslcert", "sslkey", "sslNegotiation", "channelBinding", "gssEncMode"),
    *("connectTimeout", "loginTimeout", "socketTimeout", "cancelSignalTimeout", "tcpKeepAlive"),
    *("targetServerType", "loadBalanceHosts", "hostRecheckSeconds"),
    *("ApplicationName", "currentSchema", "options", "prepareThreshold"),
)
CANNOT_HOLD = (
    "the lists have a value that the table cannot store; a retry will not help. Look at user_id, item_id and "
    "reason. Earlier releases did not check the ids in the features. If an id is wrong, run build_features, "
    "build_candidates and score_daily for the date again. The served rows are unchanged"
)


class Database(Protocol):
    """The settings of a sink that name a database: see the Settings of scoring/delivery/sinks/jdbc.py."""

    name: str
    url: str
    driver_jar: str | None


class Connection:
    """A connection to PostgreSQL. Values are passed as parameters, never inserted into the statement text."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[str | int] = ()) -> int:
        """Runs a statement, and returns the number of rows that the statement changed."""
        prepared = self._prepared(statement, values)
        try:
            prepared.execute()
            return max(int(prepared.getUpdateCount()), 0)
        finally:
            prepared.close()

    def rows(self, statement: str, values: Sequence[str | int] = ()) -> list[tuple[str | None, ...]]:
        """Runs a query, and returns its rows. All values are text."""
        prepared = self._prepared(statement, values)
        try:
            result, rows = prepared.executeQuery(), []
            width = result.getMetaData().getColumnCount()
            while result.next():
                rows.append(tuple(result.getString(column) for column in range(1, width + 1)))
            return rows
        finally:
            prepared.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commits all statements of the block together, or rolls them back if the block raises an error."""
        self._connection.setAutoCommit(False)
        try:
            yield
            self._connection.commit()
        except BaseException:
            self._connection.rollback()
            raise
        finally:
            self._connection.setAutoCommit(True)

    def _prepared(self, statement: str, values: Sequence[str | int]) -> Any:
        """Returns a prepared statement with its parameters set."""
        prepared = self._connection.prepareStatement(statement)
        for index, value in enumerate(values, start=1):
            prepared.setObject(index, value)
        return prepared


def refused_parameters(url: str) -> list[str]:
    """Returns the parameters of a JDBC URL that are not in URL_PARAMETERS, in their original spelling."""
    names = [parameter.partition("=")[0] for parameter in url.partition("?")[2].split("&")]
    return sorted({name for name in names if name and name not in URL_PARAMETERS})


def connection_properties(credentials: Credentials) -> dict[str, str]:
    """Returns the properties of connections from the driver and from workers, with the password."""
    return {**_CONNECTION, "user": credentials.user, "password": credentials.password}


@contextmanager
def connect(spark: SparkSession, sink: Database, credentials: Credentials) -> Iterator[Connection]:
    """Opens a connection, and closes it at the end of the block. Errors of PostgreSQL become NightrankErrors.

    Raises:
        ConfigError: the JDBC driver is not on the class path, or PostgreSQL rejects the user, the password,
            the database or the table.
        DataError: the table cannot store a value.
        InfrastructureError: any other error of PostgreSQL or the network.
    """
    jvm: Any = spark._jvm
    _load_driver(spark, sink)
    properties = jvm.java.util.Properties()
    for name, value in connection_properties(credentials).items():
        properties.setProperty(name, value)
    properties.setProperty("stringtype", "unspecified")  # the server infers the types of text parameters
    connection = None
    try:
        registry = jvm.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry
        connection = registry.get(DRIVER).connect(sink.url, properties)
        yield Connection(connection)
    except Py4JJavaError as error:
        raise sql_error(sink, error) from error
    finally:
        if connection is not None:
            connection.close()


def sql_error(sink: Database, error: Py4JJavaError) -> NightrankError:
    """Returns the NightrankError for a failed statement.

    The SQLSTATE of the error determines the class (PostgreSQL's manual, appendix A).
    """
    cause = error.java_exception
    while cause is not None and "SQLException" not in cause.getClass().getName():
        cause = cause.getCause()
    if cause is None:
        first = str(error.java_exception.getMessage()).strip().split("\n", 1)[0]
        return InfrastructureError(
            f"sink {sink.name}: {first}",
            "read the cause in the job's log above; the served rows are unchanged",
        )
    state, message = str(cause.getSQLState()), str(cause.getMessage()).strip()
    problem = f"sink {sink.name} ({sink.url}): {message} (SQLSTATE {state})"
    if state.startswith("28"):
        return ConfigError(
            problem, "correct the user and the password of this sink; deliver.sinks says where they are read"
        )
    if state.startswith("08") and ("SSL" in message or "hostnameverifier" in message):
        return ConfigError(
            problem,
            "the sink checks the server's certificate: add ?sslrootcert=/path/to/ca.pem to its url, or, if "
            "you trust the network, ?sslmode=disable",
        )
    if state.startswith(("42", "3")):
        return ConfigError(
            problem,
            "correct the database and table under deliver.sinks, or allow the user to create and change "
            "tables there",
        )
    if state.startswith(("22", "54")):  # invalid values, or values too large for PostgreSQL
        return DataError(problem, CANNOT_HOLD)
    return InfrastructureError(
        problem,
        "check that the database can be reached; a retry may help. The served rows are unchanged",
    )


def _load_driver(spark: SparkSession, sink: Database) -> None:
    """Registers the JDBC driver. If the sink sets `driver_jar`, the driver is loaded from this file."""
    jvm: Any = spark._jvm
    if sink.driver_jar is not None:
        path = os.path.expanduser(sink.driver_jar)
        if "://" not in path and not os.path.isfile(path):
            raise ConfigError(
                f"deliver.sinks: driver_jar={sink.driver_jar} of {sink.name} does not exist", _driver_advice()
            )
        spark.sql(f"ADD JAR '{path}'")
    try:
        jvm.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry.register(DRIVER)
    except Py4JJavaError as error:
        raise ConfigError(
            f"sink {sink.name}: {DRIVER} is not on Spark's class path", _driver_advice()
        ) from error


def _driver_advice() -> str:
    """Returns the remedy to show if the JDBC driver is missing."""
    return (
        "set spark.jars.packages to org.postgresql:postgresql:42.7.14 in the Spark profile (or pass it as "
        "--packages), or run `make jars` and set driver_jar of the sink to "
        "~/.cache/nightrank/jars/postgresql-42.7.14.jar"
    )


def dates_of(database: Connection, target: str) -> list[str]:
    """Returns the dates of a table, newest first.

    The query finds each date by one lookup in the index of the primary key.
    """
    dates = database.rows(
        f"WITH RECURSIVE dates AS (SELECT max(dt) AS dt FROM {target} UNION ALL "
        f"SELECT (SELECT max(dt) FROM {target} WHERE dt < dates.dt) FROM dates WHERE dates.dt IS NOT NULL) "
        "SELECT dt FROM dates WHERE dt IS NOT NULL"
    )
    return [str(dt) for (dt,) in dates]


# The staging tables of the JDBC sink: one for each attempt at a delivery.

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
    """Deletes rows of users from the served table and its staging tables. Returns the number of rows.

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
