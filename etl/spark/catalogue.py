"""Opens tables of Spark's catalogue, and decides whether their rows have changed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any, cast
from urllib.parse import unquote

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from conf.errors import ConfigError, DataError
from conf.names import has_date, with_date
from conf.raw_types import Log, RawTable
from conf.spark_tables import split_table_path
from etl.raw.parquet_columns import missing_columns
from etl.raw.table_copies import source_columns, time_column
from etl.readers.arrow_values import require_type
from spark.error_log import root_cause
from storage.manifest import digest_of

_NUMBER_OF_EXPRESSION = re.compile(r"#\d+L?")
_INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_MOST_FIELDS = 2**31 - 1  # no limit: the text of a plan names all fields
_FUNCTION_OF_USER = "UDF"  # part of a plan's text; the code of the function may change, but not the text
_DELETION_VECTORS = "delta.enableDeletionVectors"
# Spark's messages if the class path lacks the jar of a format or of a catalogue.
_JAR_MISSING = re.compile(
    r"ClassNotFoundException|NoClassDefFoundError|DATA_SOURCE_NOT_FOUND|Cannot find catalog plugin class"
)
# Spark's messages if the metastore cannot be reached. Then a retry may help.
_UNREACHABLE = re.compile(
    r"Connection refused|TTransportException|SocketException|UnknownHostException|[Tt]imed out|"
    r"SessionHiveMetaStoreClient"
)
_CATALOGUE = (
    "correct the name; for a table of Hive's metastore, the Spark profile needs "
    "spark.sql.catalogImplementation=hive; a table of Iceberg or Delta needs its runtime jar in spark.jars, "
    "and its settings spark.sql.catalog.… and spark.sql.extensions (docs/lakes.md)"
)


def open_rows(spark: SparkSession, table: RawTable, dt: str, key: str) -> DataFrame | None:
    """Returns the rows of a day of a table. The listed columns have the same names as in the table.

    Args:
        spark: the session, whose catalogue has the table.
        table: the settings of the table.
        dt: the day. It has no effect on a table that is not read by day.
        key: the key of the configuration with the path, for error messages.

    Returns:
        The rows; None if `{date}` is part of the table's name, and there is no table of this day.

    Raises:
        ConfigError: the session cannot open the table, or a column has a type that its declared type cannot
            hold.
        DataError: the table lacks a column, or has a column of a type that cannot be read.
    """
    parts, conditions = split_table_path(table.path)
    name = ".".join(_named(parts, dt))
    rows = _open(spark, _named(parts, dt), name, key)
    if rows is None:
        if any(has_date(part) for part in parts):
            return None
        raise ConfigError(f"{key}: Spark's catalogue has no table or view {name}", _CATALOGUE)
    for column, value in conditions:
        rows = rows.where(_is_of(rows, name, column, with_date(value, dt), table.time_zone, key))
    return rows.select(*_columns(rows, table, name))


def identity(spark: SparkSession, table: RawTable, dt: str) -> str:
    """Returns a URI of a table, or of its rows of a day, for the lineage."""
    parts, conditions = split_table_path(table.path)
    known = spark.catalog.getTable(".".join(map(_quoted, _named(parts, dt))))
    path = ".".join([*(known.namespace or []), known.name])
    below = "".join(f"/{column}={with_date(value, dt)}" for column, value in conditions)
    return f"spark-table://{known.catalog or 'session'}/{path}{below}"


def order_of(rows: DataFrame, table: RawTable) -> list[str]:
    """Returns the columns by which copied rows are sorted: the time of the event, and then all others.

    Rows with equal values in all columns are interchangeable. So the order of a copy depends only on rows.
    """
    time = time_column(table)
    return [_quoted(name) for name in sorted(rows.columns, key=lambda name: (name != time, name))]


def as_id(rows: DataFrame, column: str) -> Column:
    """Returns a column's user ids in the same form as readers do: a whole number has no fraction."""
    kind, value = rows.schema[column].dataType, F.col(_quoted(column))
    if isinstance(kind, T.FloatType | T.DoubleType | T.DecimalType):
        value = value.cast(T.DecimalType(38, 0))
    return value.cast("string")


def with_plain_integers(rows: DataFrame, column: str) -> DataFrame:
    """Converts texts of integers in a column to the same form as readers do: `007` becomes `7`.

    Other texts stay unchanged, and are quarantined when the copy is read.
    """
    if not isinstance(rows.schema[column].dataType, T.StringType):
        return rows
    text = F.col(_quoted(column))
    plain = F.regexp_replace(text, "[.]0*$", "").cast(T.DecimalType(38, 0)).cast("string")
    is_integer = text.rlike("^[+-]?[0-9]{1,19}([.]0*)?$")  # as in etl/raw/text_values.py
    return rows.withColumn(column, F.when(is_integer, plain).otherwise(text))


def content_of(rows: DataFrame) -> str:
    """Returns a digest of the rows and their columns that does not depend on the order of the rows."""
    names = sorted(rows.columns)
    parts: list[Column] = []
    for name in names:
        value = F.col(_quoted(name))
        parts += [value, value.isNull()]  # a hash skips nulls
        if isinstance(rows.schema[name].dataType, T.ArrayType):
            parts.append(F.size(value))
    hashes = [F.xxhash64(F.lit(seed), *parts).cast(T.DecimalType(38, 0)) for seed in (1, 2)]
    ((count, *sums),) = rows.agg(F.count(F.lit(1)), *map(F.sum, hashes)).collect()
    types = [[name, rows.schema[name].dataType.simpleString()] for name in names]
    return digest_of([types, count, *(str(total) for total in sums)])


def state_of(spark: SparkSession, rows: DataFrame) -> str | None:
    """Returns a digest of the sources of the rows, without reading the rows.

    The digest is computed from Spark's plan and, depending on the table, from the names, sizes and times of
    files, the snapshot of an Iceberg table, or the version of a Delta table with deletion vectors. If the
    digest has not changed, the rows have not changed.

    Returns:
        The digest. None if only the rows show whether they have changed, as for JDBC, random values and rows
        in memory.
    """
    try:
        plan = rows._jdf.queryExecution().optimizedPlan()
        if not plan.deterministic() or not plan.subqueriesAll().isEmpty():
            return None
        leaves = _elements(plan.collectLeaves())
        states = [_state_of_leaf(leaf) for leaf in leaves]
        if None in states:
            return None
        text = _NUMBER_OF_EXPRESSION.sub("#", plan.treeString(True, False, _MOST_FIELDS, False))
        if _FUNCTION_OF_USER in text:
            return None
        return digest_of([text, states, _stamps(spark, rows.inputFiles())])
    except Py4JError:  # a plan of another release, or a deleted folder: then the rows must be compared
        return None


def _named(parts: Sequence[str], dt: str) -> list[str]:
    """Returns the parts of a name with a date in digits only, because Spark's names have no hyphens."""
    return [with_date(part.replace("{date}", dt.replace("-", "")), dt) for part in parts]


def _open(spark: SparkSession, parts: Sequence[str], name: str, key: str) -> DataFrame | None:
    """Returns the table; None if there is none.

    Raises:
        ConfigError: the class path lacks a jar, or the table itself is broken.
        PySparkException, Py4JError: the metastore cannot be reached.
    """
    quoted = ".".join(map(_quoted, parts))
    try:
        if not spark.catalog.tableExists(quoted):
            return None
        spark.catalog.refreshTable(quoted)  # otherwise, Spark may use the cached files of an earlier run
        rows = spark.table(quoted)
        rows.schema  # noqa: B018 - the analysis may fail here
    except (PySparkException, Py4JError) as error:
        text = str(error)
        is_wrong = isinstance(error, AnalysisException) and not _UNREACHABLE.search(text)
        if not is_wrong and not _JAR_MISSING.search(text):
            raise
        problem = f"{key}: Spark cannot open the table {name}: {root_cause(error)}"
        raise ConfigError(problem, _CATALOGUE) from error
    return rows


def _columns(rows: DataFrame, table: RawTable, name: str) -> list[Column]:
    """Returns the listed columns of a table, after their types have been checked."""
    optional = {column.source_name for column in table.columns if column.optional}
    wanted = source_columns(table)
    missing = [column for column in wanted if column not in rows.columns and column not in optional]
    if missing:
        raise missing_columns(name, missing, rows.columns)
    time = table.event_time.column if isinstance(table, Log) and table.event_time else None
    present = [column for column in wanted if column in rows.columns]
    types = {column: _arrow_type(rows, column, name) for column in present}
    for column in table.columns:
        if column.source_name in types:
            require_type(name, column, types[column.source_name], column.name == time)
    return [_storable(rows, column) for column in present]


def _arrow_type(rows: DataFrame, column: str, table: str) -> pa.DataType:
    """Returns the Arrow type of the values of a column.

    Raises:
        DataError: no reader can read the type of the column.
    """
    kind = rows.schema[column].dataType
    try:
        if not isinstance(kind, T.MapType | T.StructType):
            return to_arrow_type(kind)
    except PySparkException:
        pass
    raise DataError(
        f"{table}: the column {column!r} has the type {kind.simpleString()}, which cannot be read",
        "store it as integers, floats or text, or make a view that does; or remove it from the configuration",
    )


def _storable(rows: DataFrame, name: str) -> Column:
    """Converts a column without a type, which Parquet files cannot store."""
    value = F.col(_quoted(name))
    if isinstance(rows.schema[name].dataType, T.NullType):
        value = value.cast("string").alias(name)
    return value


def _is_of(rows: DataFrame, table: str, name: str, value: str, time_zone: str, key: str) -> Column:
    """Returns the condition that a column has the value in a path, or that a time is on the day in it."""
    if name not in rows.columns:
        raise ConfigError(
            f"{key} names the column {name!r}, but the table {table} has {rows.columns}",
            "write columns of the table and their values after its name",
        )
    kind, column = rows.schema[name].dataType, F.col(_quoted(name))
    if isinstance(kind, T.StringType):
        return column == F.lit(value)
    if isinstance(kind, _INTEGERS) and re.fullmatch(r"-?\d{1,18}", value):
        return column == F.lit(int(value))
    try:
        day = date.fromisoformat(value)
    except ValueError:
        day = None
    if day is not None and isinstance(kind, T.DateType):
        return column == F.lit(day)
    if day is not None and isinstance(kind, T.TimestampType | T.TimestampNTZType):
        zone = f" {time_zone}" if isinstance(kind, T.TimestampType) else ""
        first, end = (
            F.lit(f"{one.isoformat()} 00:00:00{zone}").cast(kind) for one in (day, day + timedelta(days=1))
        )
        return (column >= first) & (column < end)
    raise ConfigError(
        f"{key}: the column {name!r} of the table {table} has the type {kind.simpleString()}, which has no "
        f"value {value!r}",
        "name a column of the type string, date or timestamp, or make a view that has one",
    )


def _state_of_leaf(leaf: Any) -> str | None:
    """Returns a text that identifies the data of a plan's leaf, apart from its files; None if unknown."""
    name = leaf.getClass().getSimpleName()
    if name == "OneRowRelation":
        return ""
    if name == "LogicalRelation" and leaf.relation().getClass().getSimpleName() == "HadoopFsRelation":
        return _state_of_delta(leaf.relation().location())
    if name in ("DataSourceV2ScanRelation", "DataSourceV2Relation"):
        relation = leaf.relation() if name == "DataSourceV2ScanRelation" else leaf
        table = relation.table()
        if table.getClass().getName().startswith("org.apache.iceberg.spark."):
            inner = table.table()
            snapshot = inner.currentSnapshot()
            return f"{inner.uuid()} {snapshot.snapshotId() if snapshot is not None else None}"
    return None


def _state_of_delta(location: Any) -> str | None:
    """Returns the version of a Delta table with deletion vectors. Such deletions do not change its files."""
    if not location.getClass().getName().startswith(("org.apache.spark.sql.delta", "io.delta")):
        return ""
    prepared = location.getClass().getSimpleName() == "PreparedDeltaFileIndex"
    snapshot = location.preparedScan().scannedSnapshot() if prepared else location.getSnapshot()
    settings = snapshot.metadata().configuration()
    deletes = settings.contains(_DELETION_VECTORS) and settings.apply(_DELETION_VECTORS).lower() == "true"
    return str(snapshot.version()) if deletes else ""


def _stamps(spark: SparkSession, files: Sequence[str]) -> list[list[Any]]:
    """Returns path, size and time of modification of the files, ordered by path."""
    paths = cast(Any, spark._jvm).org.apache.hadoop.fs
    configuration = spark._jsc.hadoopConfiguration()
    names = {unquote(file.rpartition("/")[2]) for file in files}
    stamps = []
    for folder in sorted({unquote(file.rpartition("/")[0]) for file in files}):
        path = paths.Path(folder)
        for status in path.getFileSystem(configuration).listStatus(path):
            if status.getPath().getName() in names:
                stamps.append([str(status.getPath()), status.getLen(), status.getModificationTime()])
    return sorted(stamps)


def _elements(sequence: Any) -> list[Any]:
    """Returns the elements of a sequence of Scala."""
    return [sequence.apply(index) for index in range(sequence.size())]


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
