"""Tables of Delta Lake and Iceberg with the partition column `dt`.

A delivery replaces the rows of one date. `DeltaFolder` is a Delta table in a folder. delta-rs commits to it,
so no Spark and no catalogue is needed. If the rows are a frame of Spark, its tasks write the files.
`CatalogueTable` is a Delta or Iceberg table of Spark's catalogue; Spark writes it.

Each replacement is one commit. So readers see all old or all new rows of the date, and a killed delivery
changes nothing. The files of a killed delivery belong to no version of the table; a VACUUM deletes them.
"""

from __future__ import annotations

import json
import random
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from conf.errors import ConfigError, DataError, InfrastructureError
from conf.lazy_imports import F
from etl.raw.files import DeltaFile, DeltaVersion, current_version, kept_rows
from scoring.delivery.day_tables import Replaced
from spark.rows import Rows, frame_of, query, quoted, records
from storage import file_io
from storage.file_digests import new_file, split_name
from storage.other_tools import DATE, refused_names, schema_of, store_options
from storage.paths import Partition
from storage.publish import describe, spark_schema, write_files

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

_TRIES = 20
_WAIT_S = 0.2
_ROWS_PER_FILE = 2_000_000
_DATE_TYPE = "date32[day]"
_LOG = "_delta_log"
# Settings of a Delta table that set rules for rows. delta-rs does not check these rules for files that Spark
# or Arrow has written.
_RULES = re.compile(r"delta\.constraints\..*|delta\.appendOnly=true")
# Maps each table format to a property and its value. With it, the table's metadata do not contain the lowest
# and highest values of columns. These would be ids of users, which an erasure cannot remove from metadata.
_NO_BOUNDS = {
    "delta": ("delta.dataSkippingNumIndexedCols", "0"),
    "iceberg": ("write.metadata.metrics.default", "counts"),
}
# Parts of Spark's error messages if another program has changed the table since this program read it.
_CONFLICT = re.compile(
    r"Concurrent(Append|DeleteRead|DeleteDelete|Transaction|Write|Modification)Exception|"
    r"CommitFailedException|MetadataChangedException|ProtocolChangedException|AlreadyExistsException|"
    r"DELTA_(CONCURRENT|METADATA_CHANGED|PROTOCOL_CHANGED)"
)
_OTHER_JOB = "run only one delivery per date at a time, and run the job again"


@dataclass(frozen=True)
class DayRows:
    """The rows that a table must have for one date.

    Attributes:
        dt: the date.
        columns: (name, Arrow type) of each column, as in a manifest, without `dt`.
        key: the columns that identify a row. Written rows are sorted by them.
        rows: the number of rows.
        read: reads the rows, which have these columns.
    """

    dt: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    rows: int
    read: Callable[[], Rows]

    @property
    def names(self) -> list[str]:
        """Returns the names of the columns, without the date column `dt`."""
        return [name for name, _ in self.columns]

    @property
    def all_columns(self) -> list[tuple[str, str]]:
        """Returns (name, Arrow type) of each column of the table, with the date column `dt`."""
        return [*self.columns, (DATE, _DATE_TYPE)]


@dataclass(frozen=True)
class DeltaFolder:
    """A Delta table in a folder of a local disk or an object store of S3."""

    root: str

    def replace(self, day: DayRows) -> Replaced:
        """Replaces the rows of a date by one commit. Does nothing if the table already has these rows.

        Returns the numbers of written and deleted rows, which are 0 if nothing was changed.

        The table is created if the folder does not exist or is empty.

        Raises:
            ConfigError: the folder is not a Delta table, is not partitioned by `dt` alone, or has rules that
                this delivery cannot check.
            DataError: the columns of the table differ from those of the rows.
            InfrastructureError: the table cannot be read or written, or other programs changed the rows of
                the date during each try.
        """
        from deltalake.exceptions import CommitFailedError

        rows: Rows | None = None
        written: list[tuple[str, int, int, str]] = []
        for attempt in range(_TRIES):
            with self._errors():
                try:
                    version = self._open_or_create(day)
                    files = _files_of(version, day.dt)
                    number = self._stored(version, day.dt)["number"][0].as_py() if files else 0
                    rows = day.read() if rows is None else rows
                    if number == day.rows and (not number or self._has(version, files, rows, day)):
                        return Replaced(0, 0)
                    written = written or self._write(rows, day)
                    self._commit(version, day.dt, written)
                    return Replaced(day.rows, number)
                except CommitFailedError:
                    time.sleep(random.uniform(0, _WAIT_S * (attempt + 1)))
        raise InfrastructureError(
            f"the Delta table {self.root} cannot be changed: other programs replaced dt={day.dt} during each "
            f"of {_TRIES} tries",
            _OTHER_JOB,
        )

    def dates(self) -> list[str]:
        """Returns the dates of the table's rows, in ascending order."""
        with self._errors():
            version = current_version(self.root)
        if version is None or DATE not in version.partitions.column_names:
            return []
        return sorted({str(value) for value in version.partitions[DATE].to_pylist()})

    def delete_before(self, dt: str) -> int:
        """Deletes the rows of all dates before `dt` by one commit. Returns the number of deleted rows."""
        return self._delete(lambda table: table.delete(f"{DATE} < CAST('{dt}' AS DATE)")["num_deleted_rows"])

    def erase(self, column: str, users: frozenset[str]) -> int | None:
        """Deletes the rows of users by one commit. Returns their number; None if there is no table.

        Args:
            column: the column with the ids of users.
            users: the ids. They are rows of a MERGE, because the log of the table would store the predicate
                of a DELETE, and thus the ids.
        """
        with self._errors():
            if current_version(self.root) is None:
                return None
        erased = pa.table({column: sorted(users)})

        def delete(table: DeltaTable) -> int:
            merge = table.merge(
                erased,
                f'served."{column}" = erased."{column}"',
                source_alias="erased",
                target_alias="served",
            )
            return int(merge.when_matched_delete().execute()["num_target_rows_deleted"])

        return self._delete(delete)

    def remark(self) -> str:
        """Returns a sentence that says where ids of erased users still exist."""
        with self._errors():
            properties = self._table().metadata().configuration
        return (
            f"files of earlier versions of {self.root} may have rows of these users, until a VACUUM of the "
            f"Delta table deletes the files{_bounds('delta', properties)}"
        )

    def _delete(self, delete: Callable[[DeltaTable], int | None]) -> int:
        """Calls `delete`, and repeats the call if another program changed the table. Returns its result."""
        from deltalake.exceptions import CommitFailedError

        for attempt in range(_TRIES):
            with self._errors():
                try:
                    return int(delete(self._table()) or 0)
                except CommitFailedError:
                    time.sleep(random.uniform(0, _WAIT_S * (attempt + 1)))
        raise InfrastructureError(
            f"rows of the Delta table {self.root} cannot be deleted: other programs changed the table during "
            f"each of {_TRIES} tries",
            "run the job again when no other program writes the table",
        )

    def _table(self, version: int | None = None) -> DeltaTable:
        from deltalake import DeltaTable

        return DeltaTable(self.root, version=version, storage_options=store_options(self.root))

    def _open_or_create(self, day: DayRows) -> DeltaVersion:
        """Returns the current version of the table, after its columns and settings have been checked."""
        from deltalake import DeltaTable

        require_names(self.root, "delta", day.names)
        # While another delivery creates the table, the folder is empty, or contains only an empty log folder.
        others = [info for info in file_io.list_files(self.root) if info.base_name != _LOG]
        if not others and not DeltaTable.is_deltatable(self.root, store_options(self.root)):
            DeltaTable.create(
                self.root,
                schema_of(day.all_columns),
                mode="ignore",
                partition_by=[DATE],
                configuration=dict([_NO_BOUNDS["delta"]]),
                storage_options=store_options(self.root),
            )
        version = current_version(self.root)
        if version is None:
            raise InfrastructureError(
                f"the Delta table {self.root} was deleted during a delivery", "run the job again"
            )
        table = self._table(version.number)
        fields = _fields(table.schema().to_json())
        require_columns(self.root, _types(fields), _types(_fields(schema_of(day.all_columns).to_json())))
        self._require_settings(table, fields)
        return version

    def _require_settings(self, table: DeltaTable, fields: Sequence[dict[str, Any]]) -> None:
        metadata = table.metadata()
        if list(metadata.partition_columns) != [DATE]:
            raise ConfigError(
                f"the Delta table {self.root} is partitioned by {list(metadata.partition_columns)}, but a "
                f"delivery replaces partitions of [{DATE!r}]",
                "set `path` of the sink to a folder that does not exist, and the job creates the table",
            )
        rules = [
            key
            for key, value in metadata.configuration.items()
            if _RULES.fullmatch(key) or _RULES.fullmatch(f"{key}={value}")
        ]
        rules += [
            f"{key} of {field['name']}" for field in fields for key in field["metadata"] if "delta." in key
        ]
        if rules:
            raise ConfigError(
                f"the Delta table {self.root} has rules that a delivery without Spark cannot check: {rules}",
                "remove them from the table, or deliver with Spark to a table of its catalogue (`table`)",
            )

    def _has(self, version: DeltaVersion, files: Sequence[DeltaFile], rows: Rows, day: DayRows) -> bool:
        """Returns whether the table has exactly these rows for a date. The caller has compared the counts."""
        paths = [file.path for file in files]
        if any(not all(kept) for kept in kept_rows(version, set(paths)).values()):
            return False
        if isinstance(rows, pa.Table):
            return _are_equal(self._stored(version, day.dt, day.names), rows, day)
        reader = rows.sparkSession.read.schema(spark_schema(day.columns))
        return _are_equal(reader.parquet(*map(file_io.escaped, paths)), rows, day)

    def _stored(self, version: DeltaVersion, dt: str, names: Sequence[str] = ()) -> pa.Table:
        """Returns the columns `names` of the rows of a date or, without names, the number of rows.

        pyarrow 14 cannot read the files that delta-rs itself has rewritten, because their Arrow schema has
        the type string_view. DuckDB converts this type.
        """
        import duckdb
        from deltalake import QueryBuilder

        columns = ", ".join('"{}"'.format(name.replace('"', '""')) for name in names) or "count(*) AS number"
        stream = (
            QueryBuilder()
            .register("served", self._table(version.number))
            .execute(f"SELECT {columns} FROM served WHERE {DATE} = CAST('{dt}' AS DATE)")
        )
        with duckdb.connect() as connection:
            connection.register("served", stream)
            return connection.sql("SELECT * FROM served").to_arrow_table()

    def _write(self, rows: Rows, day: DayRows) -> list[tuple[str, int, int, str]]:
        """Writes Parquet files, without adding them to the table.

        Returns (path below the folder of the table, number of rows, number of bytes, statistics) of each
        file.
        """
        partition = Partition(self.root, day.dt, f"{self.root}/{DATE}={day.dt}", depth=1)
        attempt = f"delivery-{uuid.uuid4().hex[:12]}"
        if isinstance(rows, pa.Table):
            names = _write_table(rows, partition, attempt, day)
        else:
            names = list(write_files(rows, partition, attempt, _ROWS_PER_FILE, day.rows, day.key, None))
        paths = [split_name(name)[0] for name in names]
        file_io.make_durable(map(partition.file, paths), self.root)
        files = []
        for path in paths:
            _, number, size, *_ = describe(partition.file(path))
            if number:  # write no minimum or maximum of columns: ids of users must not be in the Delta log
                files.append((f"{DATE}={day.dt}/{path}", number, size, json.dumps({"numRecords": number})))
        _require_rows(self.root, sum(number for _, number, _, _ in files), day)
        return files

    def _commit(self, version: DeltaVersion, dt: str, files: Sequence[tuple[str, int, int, str]]) -> None:
        from deltalake.transaction import AddAction, CommitProperties, Transaction

        table = self._table(version.number)
        # Deliveries of a date have the same application id, so two of them at the same time conflict.
        # Otherwise, on a new date, delta-rs would keep the files of both deliveries.
        application = f"nightrank {DATE}={dt}"
        number = (table.transaction_version(application) or 0) + 1
        modified = int(time.time() * 1000)
        table.create_write_transaction(
            [AddAction(path, size, {DATE: dt}, modified, True, text) for path, _, size, text in files],
            "overwrite",
            table.schema(),
            partition_by=[DATE],
            partition_filters=[(DATE, "=", dt)],
            commit_properties=CommitProperties(app_transactions=[Transaction(application, number)]),
        )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Converts errors of delta-rs in a `with` block to NightrankErrors."""
        from deltalake.exceptions import DeltaError, DeltaProtocolError

        try:
            yield
        except DeltaProtocolError as error:
            raise ConfigError(
                f"the Delta table {self.root} has a feature that delta-rs cannot write: {error}",
                "remove the feature from the table, or deliver with Spark to a table of its catalogue "
                "(`table`)",
            ) from error
        except (DeltaError, OSError) as error:
            raise InfrastructureError(
                f"the Delta table {self.root} cannot be read or written: {error}",
                "readers still see the rows of the last delivery: check the disk, or the object store and "
                "its credentials, then run the job again",
            ) from error


@dataclass(frozen=True)
class CatalogueTable:
    """A table of Delta or Iceberg in Spark's catalogue.

    Attributes:
        parts: the parts of its name: at least the schema and the table.
        form: the format of the table.
        spark: the session.
        key: the configuration key that sets this name, for error messages.
    """

    parts: tuple[str, ...]
    form: Literal["delta", "iceberg"]
    spark: SparkSession
    key: str

    @property
    def name(self) -> str:
        """Returns the name for messages."""
        return ".".join(self.parts)

    @property
    def _quoted(self) -> str:
        return ".".join(f"`{part.replace('`', '``')}`" for part in self.parts)

    def replace(self, day: DayRows) -> Replaced:
        """Does the same as `DeltaFolder.replace`.

        Raises:
            ConfigError: the session cannot open or create the table, or the table has another format.
            DataError: the columns of the table differ from those of the rows.
            InfrastructureError: the table cannot be read or written, or other programs changed the rows of
                the date during each try.
        """
        rows: DataFrame | None = None
        for attempt in range(_TRIES):
            with self._errors():
                served = self._open_or_create(day)
                rows = frame_of(self.spark, day.read()) if rows is None else rows
                old = served.where(self._is_of(day.dt))
                number = old.count()
                if number == day.rows and (not number or _are_equal(old, rows, day)):
                    return Replaced(0, 0)
                try:
                    self._overwrite(rows, day)
                except Exception as error:
                    if not _CONFLICT.search(str(error)):
                        raise
                    time.sleep(random.uniform(0, _WAIT_S * (attempt + 1)))
                    continue
                _require_rows(self.name, self._opened().where(self._is_of(day.dt)).count(), day)
                return Replaced(day.rows, number)
        raise InfrastructureError(
            f"the table {self.name} cannot be changed: other programs replaced dt={day.dt} during each of "
            f"{_TRIES} tries",
            _OTHER_JOB,
        )

    def dates(self) -> list[str]:
        """Returns the dates of the table's rows, in ascending order."""
        with self._errors():
            rows = self._open()
            dates = [] if rows is None else rows.select(DATE).distinct().collect()
        return sorted(str(row[0]) for row in dates)

    def delete_before(self, dt: str) -> int:
        """Deletes the rows of all dates before `dt` by one commit. Returns the number of deleted rows."""
        condition = f"{DATE} < DATE '{dt}'"
        with self._errors():
            number = int(self._opened().where(condition).count())
            if number:
                self.spark.sql(f"DELETE FROM {self._quoted} WHERE {condition}")
        return number

    def erase(self, column: str, users: frozenset[str]) -> int | None:
        """Does the same as `DeltaFolder.erase`."""
        view = f"erased_{uuid.uuid4().hex}"
        with self._errors():
            rows = self._open()
            if rows is None:
                return None
            erased = frame_of(self.spark, pa.table({column: sorted(users)}))
            number = int(rows.join(F.broadcast(erased), column).count())
            if number:
                erased.createTempView(view)
                self.spark.sql(
                    f"MERGE INTO {self._quoted} AS served USING {view} AS erased "
                    f"ON served.{quoted(column)} = erased.{quoted(column)} WHEN MATCHED THEN DELETE"
                )
                self.spark.catalog.dropTempView(view)
        return number

    def remark(self) -> str:
        """Returns a sentence that says where ids of erased users still exist."""
        how = (
            "a VACUUM deletes" if self.form == "delta" else "expire_snapshots and remove_orphan_files delete"
        )
        with self._errors():
            properties = self.spark.sql(f"SHOW TBLPROPERTIES {self._quoted}").collect()
        return (
            f"files of earlier versions of {self.name} may have rows of these users, until {how} them"
            f"{_bounds(self.form, {row.key: row.value for row in properties})}"
        )

    def _open(self) -> DataFrame | None:
        from etl.spark.copy_tables import open_table  # imports pyspark, as does spark.error_log

        return open_table(self.spark, self.parts, self.name, self.key)

    def _opened(self) -> DataFrame:
        rows = self._open()
        if rows is None:
            raise InfrastructureError(
                f"the table {self.name} was dropped during a delivery", "run the job again"
            )
        return rows

    def _open_or_create(self, day: DayRows) -> DataFrame:
        require_names(self.name, self.form, day.names)
        wanted = {field.name: field.dataType.simpleString() for field in spark_schema(day.columns).fields}
        wanted[DATE] = "date"
        if self._open() is None:
            columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in wanted.items())
            name, value = _NO_BOUNDS[self.form]
            self.spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self._quoted} ({columns}) USING {self.form} "
                f"PARTITIONED BY ({DATE}) TBLPROPERTIES ('{name}' = '{value}')"
            )
        described = self.spark.sql(f"DESCRIBE TABLE EXTENDED {self._quoted}").collect()
        form = next((row.data_type for row in described if row.col_name == "Provider"), None)
        if form != self.form:
            raise ConfigError(
                f"{self.key}: the table {self.name} has the format {form}, but `format` is {self.form}",
                "correct `format` or `table` of the sink",
            )
        rows = self._opened()
        require_columns(
            self.name, {field.name: field.dataType.simpleString() for field in rows.schema}, wanted
        )
        return rows

    def _overwrite(self, rows: DataFrame, day: DayRows) -> None:
        files = max(1, -(-day.rows // _ROWS_PER_FILE))
        dated = rows.select(*map(quoted, day.names)).withColumn(DATE, F.lit(date.fromisoformat(day.dt)))
        keys = [quoted(name) for name in day.key]
        ordered = dated.repartitionByRange(files, *keys).sortWithinPartitions(*keys)
        writer = ordered.writeTo(self._quoted)
        if self.form == "iceberg":
            # Without this option, Iceberg would send all rows of the date to one task.
            writer = writer.option("distribution-mode", "none")
        writer.overwrite(self._is_of(day.dt))

    def _is_of(self, dt: str) -> Any:
        return F.col(DATE) == F.lit(date.fromisoformat(dt))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Converts errors of Spark in a `with` block to NightrankErrors."""
        from py4j.protocol import Py4JError
        from pyspark.errors import AnalysisException, PySparkException

        from spark.error_log import data_error_in, root_cause

        try:
            yield
        except AnalysisException as error:
            raise ConfigError(
                f"{self.key}: Spark cannot write the table {self.name}: {root_cause(error)}",
                "create the schema of the table, and check the settings spark.sql.catalog.… and "
                "spark.sql.extensions of the Spark profile (docs/delivery.md#delta-and-iceberg)",
            ) from error
        except (PySparkException, Py4JError) as error:
            if (wrong := data_error_in(error)) is not None:
                raise wrong from error
            raise InfrastructureError(
                f"the table {self.name} cannot be read or written: {root_cause(error)}",
                "readers still see the rows of the last delivery: check the catalogue and the store of the "
                "table, then run the job again",
            ) from error


def _bounds(form: Literal["delta", "iceberg"], properties: Mapping[str, str]) -> str:
    """Returns a warning that a table's metadata may have ids of erased users; empty if they cannot."""
    name, value = _NO_BOUNDS[form]
    if properties.get(name) == value:
        return ""
    return (
        "; the metadata of the table may have their ids as the lowest or highest values of files, until old "
        f"metadata are deleted: set the property {name} of the table to {value} to avoid this"
    )


def require_columns(table: str, known: dict[str, str], wanted: dict[str, str]) -> None:
    """Raises DataError, with names and types, if the columns of a table differ from those of the rows."""
    differences = [
        f"{name} has the type {known[name]} in the table, but {kind} in the rows"
        for name, kind in wanted.items()
        if known.get(name, kind) != kind
    ]
    differences += [
        f"{name} ({kind}) is missing in the table" for name, kind in wanted.items() if name not in known
    ]
    differences += [
        f"{name} ({kind}) is missing in the rows" for name, kind in known.items() if name not in wanted
    ]
    if differences:
        raise DataError(
            f"the table {table} and the rows to deliver have different columns: {'; '.join(differences)}",
            "a delivery never changes the columns of a table, because its readers depend on them. Change the "
            "columns with ALTER TABLE, or give the sink another `path` or `table`, then run the job again",
        )


def require_names(table: str, form: str, names: Sequence[str]) -> None:
    """Raises DataError if a table of this format cannot have columns of these names."""
    wrong = refused_names(names)
    if form == "iceberg":
        lower = [name.casefold() for name in names]
        wrong = [name for name in wrong if name == DATE or lower.count(name) > 1]
    if wrong:
        raise DataError(
            f"the table {table} cannot have columns of the names {wrong}: {DATE} is the name of the date's "
            "column, two names must not differ only in case, and Delta allows no spaces and none of the "
            "characters ,;{}()=",
            "rename these features, or leave out this table in `features` of the sink",
        )


def _require_rows(table: str, number: int, day: DayRows) -> None:
    if number != day.rows:
        raise InfrastructureError(
            f"the table {table} has {number} rows of dt={day.dt}, but the lake has {day.rows}",
            f"another program has changed the rows: {_OTHER_JOB}",
        )


def _are_equal(stored: Rows, rows: Rows, day: DayRows) -> bool:
    """Returns whether two sets of rows, which have the same number of rows, are equal."""
    names = ", ".join(map(quoted, day.names))
    text = (
        f"SELECT count(*) AS missing FROM (SELECT {names} FROM {{rows}} EXCEPT ALL SELECT {names} FROM "
        "{stored}) AS lost"
    )
    (counted,) = records(query(text, rows=rows, stored=stored))
    return bool(counted["missing"] == 0)


def _files_of(version: DeltaVersion, dt: str) -> list[DeltaFile]:
    dates = [str(value) for value in version.partitions[DATE].to_pylist()]
    return [file for file in version.files if dates[file.row] == dt]


def _write_table(rows: pa.Table, partition: Partition, attempt: str, day: DayRows) -> list[str]:
    """Writes the rows of a table to sorted files. Returns their paths below the folder of the date."""
    ordered = rows.select(day.names).sort_by([(name, "ascending") for name in day.key])
    number = max(1, -(-len(ordered) // _ROWS_PER_FILE))
    names = []
    for index in range(number):
        first, end = len(ordered) * index // number, len(ordered) * (index + 1) // number
        name = f"{attempt}/part-{index:05d}.parquet"
        with new_file(partition.file(name)) as file:
            pq.write_table(ordered.slice(first, end - first), file.sink, compression="zstd")
        names.append(name)
    return names


def _fields(schema: str) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = json.loads(schema)["fields"]
    return fields


def _types(fields: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Maps the names of the fields of a Delta schema to their types."""

    def text(kind: Any) -> str:
        if isinstance(kind, str):
            return kind
        return f"array<{text(kind['elementType'])}>" if kind["type"] == "array" else json.dumps(kind)

    return {field["name"]: text(field["type"]) for field in fields}
