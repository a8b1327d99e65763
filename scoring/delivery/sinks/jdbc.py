"""The JDBC sink: delivers the lists of a run date to a PostgreSQL table.

Several connections copy the lists into a new table, which no application reads (COPY … FROM STDIN). One short
transaction then makes this table the partition of its date (day_tables.py). If the sink's table comes from an
earlier release, it has no partitions, and day_tables.py copies the rows into it.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from conf.errors import ConfigError, InfrastructureError, raised_in
from conf.types import PositiveInt, Secret, SinkSettings
from scoring.delivery.day_tables import delete_users, drop_abandoned, new_table, open_table
from scoring.delivery.postgresql import (
    URL_PARAMETERS,
    connect,
    driver_of_spark,
    driver_on_disk,
    refused_parameters,
)
from scoring.delivery.published_lists import COLUMNS, Delivered, Erased, EraseRequest, PublishedLists
from scoring.delivery.secrets import Credentials, read_credentials
from scoring.requests import VARIANT
from spark.rows import Rows, records, spark_types
from spark.tasks import map_batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("nightrank")

_BATCH_ROWS = 1 << 15
_ROWS_PER_CONNECTION = 50_000  # for fewer rows, opening another connection takes more time than it saves
_COPIED = pa.schema([("rows", pa.int64())])
# The escapes for special characters in the text format of COPY. The backslash is escaped first, because the
# other escapes contain it.
_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
_TEXT = pa.large_string()
_UNTIL_VACUUM = "PostgreSQL keeps the bytes of deleted rows until the next VACUUM of the table"


# PostgreSQL silently truncates names to 63 bytes. The limit leaves room for suffixes of additional tables.
_TABLE = re.compile(r"([a-z_][a-z0-9_]{0,39}\.)?[a-z_][a-z0-9_]{0,29}")


class Settings(SinkSettings):
    """A PostgreSQL table of lists, with a partition for each date. Deliveries replace whole partitions."""

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
        description="Path of the jar of the JDBC driver. With a local path, a small run does not start "
        "Spark. Null: the driver is in Spark's folder of jars, or on Spark's class path by the option "
        "--packages of spark-submit.",
    )

    @field_validator("url")
    @classmethod
    def _postgresql(cls, value: str) -> str:
        if not value.startswith("jdbc:postgresql:"):
            raise ValueError("it must begin with jdbc:postgresql:")
        if refused := refused_parameters(value):
            raise ValueError(
                f"it must not have the parameters {refused}; allowed are only {sorted(URL_PARAMETERS)}"
            )
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


def _has_driver(sink: Settings) -> bool:
    """Returns whether this process can connect without Spark. Otherwise, Spark fetches the driver."""
    return driver_on_disk(sink) is not None


IN_PROCESS = _has_driver


def check(sink: Settings) -> None:
    """Raises ConfigError if the sink's credentials cannot be read or its local driver is missing."""
    read_credentials(sink.name, sink.user, sink.password)
    jar = sink.driver_jar
    if jar is not None and "://" not in jar and not os.path.isfile(os.path.expanduser(jar)):
        raise ConfigError(
            f"deliver.sinks: driver_jar={jar} of {sink.name} does not exist", "correct the path"
        )


def places(sink: Settings) -> list[str]:
    """Returns the table of the sink, with the address of its database."""
    return [f"{sink.url.partition('?')[0].rstrip('/')} {sink.table}"]


def deliver(sink: Settings, lists: PublishedLists) -> Delivered:
    """Replaces the rows of the lists' date in the sink's table, and deletes rows of old dates.

    Readers see either all old rows of the date or all new rows. Only the newest `sink.keep_dates` dates
    remain. If the date of the lists is not one of them, nothing is delivered. If the process is killed, the
    served rows are unchanged, and the next delivery drops the new table that the process left.

    The table has the columns dt, user_id, position, item_id, score, reason and model_version. Its primary key
    is (dt, user_id, position). Lists that were already delivered are not written again. The first lists of an
    experiment add the column `variant`, which is null for lists without an experiment.

    Args:
        sink: the keys of the sink in `deliver.sinks`.
        lists: the published lists of the date.

    Raises:
        ConfigError: the driver, Java or the credentials are missing, or PostgreSQL rejects the user, the
            database or the table.
        DataError: the table cannot store a value of the lists.
        InfrastructureError: PostgreSQL cannot be reached, rows are missing or repeated, or other transactions
            use the table for too long.
    """
    credentials = read_credentials(sink.name, sink.user, sink.password)
    spark = None if isinstance(lists.rows, pa.Table) else lists.frame.sparkSession
    jar = _driver(sink, lambda: lists.frame.sparkSession)
    target, digest, expected = f"{sink.url} {sink.table}", lists.manifest.digest, lists.manifest.rows
    if spark is not None:
        driver_of_spark(spark, sink)  # distributes the JDBC driver to the executors
    with connect(jar, sink, credentials) as database:
        served = open_table(database, sink.table)
        drop_abandoned(served)
        kept = sorted({*served.dates(), lists.run_date}, reverse=True)[: sink.keep_dates]
        if lists.run_date not in kept:
            log.warning(
                "%s keeps only the newest dates, %s, so the older lists of %s are not delivered",
                sink.name,
                kept,
                lists.run_date,
            )
            return Delivered(target, 0, 0, 0)
        if served.is_served(lists.run_date, digest, expected):
            return Delivered(target, expected, 0, served.delete_old(sink.keep_dates))
        has_variant = VARIANT in _names(lists.rows)
        if has_variant and not served.has_variant():
            served.add_variant()
        columns = (*COLUMNS, "model_version", *([VARIANT] if has_variant else []))
        with new_table(served, lists.run_date) as table:
            served.create(table, columns)
            statement = f"COPY {table.name} ({', '.join(columns)}) FROM STDIN"
            rows = _load(sink, lists.rows, CopyRows(sink, credentials, jar, statement, columns))
            if rows != expected:
                raise InfrastructureError(
                    f"sink {sink.name}: PostgreSQL has stored {rows} rows, but the lists have {expected}",
                    "run the job again: Spark ran a task twice, or the lists changed during the delivery. "
                    "The served rows are unchanged",
                )
            served.require_keys(table)
            replaced = served.replace(table, digest, expected, sink.keep_dates)
        drop_abandoned(served)  # also drops tables that were in use when this delivery began
    return Delivered(target, expected, replaced.written, replaced.deleted)


def erase(sink: Settings, request: EraseRequest) -> Erased:
    """Deletes the rows of users from the served table, for all dates, and from tables of killed deliveries.

    Raises:
        ConfigError, InfrastructureError: see `deliver`.
    """
    credentials = read_credentials(sink.name, sink.user, sink.password)
    with connect(_driver(sink, request.open_session), sink, credentials) as database:
        deleted = delete_users(database, sink.table, request)
    return Erased(f"{sink.url} {sink.table}", deleted, _UNTIL_VACUUM if deleted else "")


def _driver(sink: Settings, open_session: Callable[[], SparkSession]) -> str:
    """Returns the path of the JDBC driver on this machine. Starts Spark only if it must fetch the driver."""
    return driver_on_disk(sink) or driver_of_spark(open_session(), sink)


def _names(rows: Rows) -> list[str]:
    return list(rows.column_names if isinstance(rows, pa.Table) else rows.columns)


def _load(sink: Settings, rows: Rows, copy: CopyRows) -> int:
    """Copies rows through up to `sink.connections` connections. Returns the number of stored rows."""
    if isinstance(rows, pa.Table):
        return _load_table(rows.select(list(copy.columns)), copy, sink.connections)
    parts = rows.select(*copy.columns).coalesce(sink.connections)
    try:
        stored = records(map_batches(parts, copy, spark_types(_COPIED)))
    except Exception as error:
        raised = raised_in(str(error))  # Spark's error contains the worker's error as text
        if raised is None:
            raise
        raise raised from error
    return sum(int(of_task["rows"]) for of_task in stored)


def _load_table(rows: pa.Table, copy: CopyRows, connections: int) -> int:
    """Does the work of `_load` in threads of this process."""
    parts = max(1, min(connections, len(rows) // _ROWS_PER_CONNECTION))
    bounds = [len(rows) * index // parts for index in range(parts + 1)]
    failed = Event()

    def batches(index: int) -> Iterator[pa.RecordBatch]:
        part = rows.slice(bounds[index], bounds[index + 1] - bounds[index])
        for batch in part.to_batches(max_chunksize=_BATCH_ROWS):
            if failed.is_set():
                raise _OtherConnectionError
            yield batch

    def run(index: int) -> int:
        try:
            return sum(batch.column(0)[0].as_py() for batch in copy(batches(index)))
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(parts) as pool:
        futures = [pool.submit(run, index) for index in range(parts)]
        try:
            errors = [error for future in futures if (error := future.exception())]
        except BaseException:  # Ctrl-C
            failed.set()
            raise
    for error in errors:
        if not isinstance(error, _OtherConnectionError):
            raise error
    return sum(future.result() for future in futures)


class _OtherConnectionError(Exception):
    """Ends a copy whose rows are not needed any more, because another connection has failed."""


@dataclass(frozen=True)
class CopyRows:
    """Copies batches of rows into a table, with its own connection and transaction.

    Spark pickles this object.

    Attributes:
        sink: the database.
        credentials: the user and the password.
        jar: the path of the JDBC driver on the machine of the job.
        statement: COPY … FROM STDIN, in the text format.
        columns: the names of the columns of the batches.
    """

    sink: Settings
    credentials: Credentials
    jar: str
    statement: str
    columns: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copies the rows, and yields the number of rows that PostgreSQL has stored."""
        jar = _driver_of_worker(self.jar)
        with connect(jar, self.sink, self.credentials) as database, database.transaction():
            rows = database.copy(self.statement, map(copy_text, batches))
        yield pa.RecordBatch.from_arrays([pa.array([rows], pa.int64())], schema=_COPIED)


def _driver_of_worker(jar: str) -> str:
    """Returns the path of the JDBC driver in this process. Spark copies it to the folder of the executor."""
    spark_files = sys.modules.get("pyspark.files")  # Spark's Python workers import it
    if spark_files is None or not spark_files.SparkFiles._is_running_on_worker:
        return jar
    copied = str(spark_files.SparkFiles.get(os.path.basename(jar)))
    return copied if os.path.isfile(copied) else jar


def copy_text(batch: pa.RecordBatch) -> pa.Buffer:
    r"""Returns rows in the text format of COPY: tabs are between the values, and null is \N."""
    values = [_values(column) for column in batch.columns]
    tab, end = pa.scalar("\t", _TEXT), pa.scalar("\n", _TEXT)
    rows = pc.binary_join_element_wise(*values, tab, null_handling="replace", null_replacement="\\N")
    lines = pc.binary_join_element_wise(rows, pa.scalar("", _TEXT), end)
    return _content(lines)


def _values(column: pa.Array) -> pa.Array:
    """Returns the values of a column as strings, with escapes where COPY needs them."""
    values = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    texts = values.cast(_TEXT)
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        content = _content(texts).to_pybytes()
        if any(character.encode() in content for character, _ in _ESCAPES):
            for character, escape in _ESCAPES:
                texts = pc.replace_substring(texts, character, escape)
    return texts


def _content(texts: pa.LargeStringArray) -> pa.Buffer:
    """Returns the bytes of all strings, one after the other."""
    _, offsets, content = texts.buffers()
    if content is None or not len(texts):
        return pa.py_buffer(b"")
    bounds = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return content.slice(bounds[0], bounds[-1] - bounds[0])
