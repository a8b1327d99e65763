"""Copies rows of tables of Spark's catalogue into the lake, as Parquet files that tasks can read.

A copy is written again only if the rows of its day have changed. For most tables, a state such as the names,
sizes and times of files can be computed without reading the rows. If this state has not changed since the
last copy, the rows have not changed either. If the state has changed or is unknown, the job compares digests
of the rows. So the copies of old days remain valid if a table gets new days, or if its files are compacted.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, timedelta
from typing import Any, cast
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from conf.errors import ConfigError, DataError
from conf.names import days_since_epoch, has_date, split_table_path, with_date
from conf.raw_types import Log, RawTable
from conf.types import Config
from etl.raw.erased_users import erased_of_day, erased_of_table, is_erased
from etl.raw.file_columns import missing_columns
from etl.raw.files import CONTENT, USER_COLUMN, copy_of, is_by_day, source_columns, time_column
from etl.raw.time_text import starts_of_days
from etl.readers.arrow_values import require_type
from etl.workflow.feature_plan import LOG, CopiedTable, FeaturePlan, copied_days, copied_tables
from spark.error_log import root_cause
from storage import file_io
from storage.file_digests import split_name
from storage.lineage import LineageRecorder
from storage.manifest import (
    Manifest,
    data_files,
    digest_of,
    is_published,
    is_whole,
    read_manifest,
    replace_manifest,
)
from storage.paths import Partition
from storage.publish import (
    new_attempt,
    publish_facts,
    publish_files,
    require_intact_for_spark,
    write_files,
)

log = logging.getLogger("nightrank.etl")

_STATE = "state"  # The manifest of a copy stores the result of `state_of` under this key of `facts`.
_TABLE = "table"  # The manifest of a copy stores the digest of the copied rows under this key of `inputs`.
# Without these settings, Spark would write timestamps of 96 bits, which do not record whether they have a
# time zone. Spark would also refuse dates before 1582 and times before 1900.
_EXACT = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}


def copy_tables(
    spark: SparkSession,
    plan: FeaturePlan,
    run_date: str,
    recorder: LineageRecorder,
    days: Sequence[str] | None = None,
) -> None:
    """Updates the copies of all catalogue tables that the configuration contains.

    Args:
        spark: the session, whose catalogue has the tables.
        plan: the plan of the configuration.
        run_date: the run date, as an ISO date.
        recorder: records the tables as inputs of the run, and the copies that are published.
        days: the days to copy, for tables that are read by day. None means all days that a run of
            `build_features` reads.

    Raises:
        ConfigError, DataError: see `etl.spark.copy_tables.open_rows`.
    """
    for table in copied_tables(plan):
        wanted = copied_days(plan.config, table, run_date)
        for dt in wanted if days is None or not is_by_day(table.table) else days:
            _copy(spark, plan.config, table, dt, recorder)


def _copy(
    spark: SparkSession, config: Config, table: CopiedTable, dt: str, recorder: LineageRecorder
) -> None:
    """Copies the rows of a day, unless the lake has a copy of the same rows."""
    partition = copy_of(config, table.table, dt, recorder)
    published = read_manifest(partition) if is_published(partition) else None
    if published is not None and not is_whole(partition, published):
        published = None
    rows = open_rows(spark, table.table, dt, table.key)
    if rows is None:  # each day has its own table, and this day has none
        if published is None or published.files:
            publish_facts(partition, inputs={}, facts={})
        return
    uri, state = identity(spark, table.table, dt), state_of(spark, rows)
    if published is None or state is None or published.facts.get(_STATE) != state:
        rows = _with_plain_ids(rows, table)
        rows = _without_erased(rows, config, table, dt)
        if published is not None and content_of(rows) == _content(spark, partition, published):
            published = replace(published, facts={**published.facts, _STATE: state}, lineage={})
            replace_manifest(partition, published)
        else:
            published = _publish(spark, config, table, rows, partition, state)
            log.info("%s: %d rows are copied to %s", uri, published.rows, partition.path)
    recorder.record_read(uri, published.inputs.get(_TABLE, ""), published.rows)


def _publish(
    spark: SparkSession,
    config: Config,
    table: CopiedTable,
    rows: DataFrame,
    partition: Partition,
    state: str | None,
) -> Manifest:
    """Writes and publishes the rows.

    The digest is computed from the written rows, because the table may change while it is copied.
    """
    order = order_of(rows, table.table)
    attempt = new_attempt(partition)
    with _exact_times(spark):
        files = write_files(rows, partition, attempt, config.output.row_group_rows, None, order, None)
    paths = [partition.file(split_name(name)[0]) for name in files]
    content = content_of(spark.read.schema(rows.schema).parquet(*map(file_io.for_spark_reader, paths)))
    facts = {_STATE: state, CONTENT: content}
    if table.user is not None and table.user in rows.columns:
        facts[USER_COLUMN] = table.user
    return publish_files(
        partition, files, inputs={_TABLE: content}, facts=facts, grace_hours=config.output.grace_hours
    )


def _content(spark: SparkSession, partition: Partition, published: Manifest) -> str | None:
    """Returns the digest of a copy's rows.

    If an erasure of users has changed the copy, the manifest does not contain the digest. In this case, the
    digest is computed from the rows.
    """
    if CONTENT in published.facts or not published.files:
        return published.facts.get(CONTENT)
    files = data_files(partition, published)
    require_intact_for_spark(spark, files)
    return content_of(spark.read.parquet(*map(file_io.for_spark_reader, files)))


def _with_plain_ids(rows: DataFrame, table: CopiedTable) -> DataFrame:
    """Converts ids of users to the texts that readers return, so that an erasure finds them in the copy."""
    declared = {column.source_name: column.type for column in table.table.columns}
    if table.user is None or table.user not in rows.columns or declared.get(table.user) != "int":
        return rows
    return with_plain_integers(rows, table.user)


def _without_erased(rows: DataFrame, config: Config, table: CopiedTable, dt: str) -> DataFrame:
    """Leaves out the rows of erased users, so that the lake does not contain these rows."""
    if table.user is None or table.user not in rows.columns:
        return rows
    erased = erased_of_day(config, dt) if table.key == LOG else erased_of_table(config, table.table, dt)
    return rows if erased is None else rows.where(~is_erased(as_id(rows, table.user), erased))


@contextmanager
def _exact_times(spark: SparkSession) -> Iterator[None]:
    """Makes Spark write times unchanged while the `with` block runs."""
    before = {key: spark.conf.get(key, None) for key in _EXACT}
    for key, value in _EXACT.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, known in before.items():
            spark.conf.unset(key) if known is None else spark.conf.set(key, known)


# The functions below open tables of Spark's catalogue, and decide whether their rows have changed.

_INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_MOST_FIELDS = 2**31 - 1  # with this limit, the text of a Spark plan has the names of all fields
# The text of a plan contains this word if the plan has a user-defined function. The code of the function may
# change although the text of the plan stays the same.
_FUNCTION_OF_USER = "UDF"
_PATHS = ("path", "paths")  # names of the options that contain paths
_DELETION_VECTORS = "delta.enableDeletionVectors"
# Texts in Spark's error messages that show that the class path lacks the jar of a format or of a catalogue.
_JAR_MISSING = re.compile(
    r"ClassNotFoundException|NoClassDefFoundError|DATA_SOURCE_NOT_FOUND|Cannot find catalog plugin class"
)
# Texts in Spark's error messages that show that the metastore cannot be reached. In this case, a retry may
# succeed.
_UNREACHABLE = re.compile(
    r"Connection refused|TTransportException|SocketException|UnknownHostException|[Tt]imed out|"
    r"SessionHiveMetaStoreClient"
)
_CATALOGUE = (
    "correct the name; for a table of Hive's metastore, set spark.sql.catalogImplementation=hive in the "
    "Spark profile; for a table of Iceberg or Delta, add its runtime jar to spark.jars, and set "
    "spark.sql.catalog.… and spark.sql.extensions as docs/lakes.md describes"
)


def open_rows(spark: SparkSession, table: RawTable, dt: str, key: str) -> DataFrame | None:
    """Returns the rows that a table has for one day.

    The frame has the columns that the configuration lists, with their names in the table.

    Args:
        spark: the session, whose catalogue has the table.
        table: the settings of the table.
        dt: the day. It has no effect on a table that is not read by day.
        key: the configuration key of the table's path, for error messages.

    Returns:
        The rows; None if `{date}` is part of the table's name, and there is no table of this day.

    Raises:
        ConfigError: the session cannot open the table, or the type of a column in the table does not fit its
            declared type.
        DataError: the table lacks a column, or has a column of a type that cannot be read.
    """
    parts, conditions = split_table_path(table.path)
    name = ".".join(_named(parts, dt))
    rows = open_table(spark, _named(parts, dt), name, key)
    if rows is None:
        if any(has_date(part) for part in parts):
            return None
        raise ConfigError(f"{key}: Spark's catalogue has no table or view {name}", _CATALOGUE)
    for column, value in conditions:
        rows = rows.where(_is_of(rows, name, column, with_date(value, dt), table.time_zone, key))
    return rows.select(*_columns(rows, table, name))


def identity(spark: SparkSession, table: RawTable, dt: str) -> str:
    """Returns a URI that identifies a table, or its rows of a day, in the lineage."""
    parts, conditions = split_table_path(table.path)
    known = spark.catalog.getTable(".".join(map(_quoted, _named(parts, dt))))
    path = ".".join([*(known.namespace or []), known.name])
    below = "".join(f"/{column}={with_date(value, dt)}" for column, value in conditions)
    return f"spark-table://{known.catalog or 'session'}/{path}{below}"


def order_of(rows: DataFrame, table: RawTable) -> list[str]:
    """Returns the columns by which copied rows are sorted: the time of the event, and then all other columns.

    Rows with equal values in all columns are interchangeable. So the order of a copy's rows depends only on
    the rows.
    """
    time = time_column(table)
    return [_quoted(name) for name in sorted(rows.columns, key=lambda name: (name != time, name))]


def as_id(rows: DataFrame, column: str) -> Column:
    """Returns the user ids of a column as the texts that readers return, such as `7` for the number 7.0."""
    kind, value = rows.schema[column].dataType, F.col(_quoted(column))
    if isinstance(kind, T.FloatType | T.DoubleType | T.DecimalType):
        value = value.cast(T.DecimalType(38, 0))
    return value.cast("string")


def with_plain_integers(rows: DataFrame, column: str) -> DataFrame:
    """Converts texts of integers in a column as readers convert them: `007` becomes `7`.

    Other texts stay unchanged, and are quarantined when the copy is read.
    """
    if not isinstance(rows.schema[column].dataType, T.StringType):
        return rows
    text = F.col(_quoted(column))
    plain = F.regexp_replace(text, "[.]0*$", "").cast(T.DecimalType(38, 0)).cast("string")
    is_integer = text.rlike(r"^[+-]?[0-9]{1,19}([.]0*)?\z")  # etl/raw/text_values.py has the same rule
    return rows.withColumn(column, F.when(is_integer, plain).otherwise(text))


def content_of(rows: DataFrame) -> str:
    """Returns a digest of the rows and their columns that does not depend on the order of the rows."""
    names = sorted(rows.columns)
    parts: list[Column] = []
    for name in names:
        value = F.col(_quoted(name))
        parts += [value, value.isNull()]  # xxhash64 skips nulls, so it also gets a flag for null
        if isinstance(rows.schema[name].dataType, T.ArrayType):
            parts.append(F.size(value))
    hashes = [F.xxhash64(F.lit(seed), *parts).cast(T.DecimalType(38, 0)) for seed in (1, 2)]
    ((count, *sums),) = rows.agg(F.count(F.lit(1)), *map(F.sum, hashes)).collect()
    types = [[name, rows.schema[name].dataType.simpleString()] for name in names]
    return digest_of([types, count, *(str(total) for total in sums)])


def state_of(spark: SparkSession, rows: DataFrame) -> str | None:
    """Returns a digest of the sources of the rows, without reading the rows.

    The digest is computed from Spark's plan, and from schema, options and state of each table. Depending on
    the table, its state is the names, sizes and times of files, an Iceberg snapshot, or the version of a
    Delta table with deletion vectors. If the digest has not changed, the rows have not changed.

    Returns:
        The digest. None if a change can be found only by reading the rows, as for JDBC, random values and
        rows in memory.
    """
    try:
        plan = rows._jdf.queryExecution().optimizedPlan()
        if not plan.deterministic() or not plan.subqueriesAll().isEmpty():
            return None
        leaves = _elements(plan.collectLeaves())
        states = [_state_of_leaf(leaf) for leaf in leaves]
        if None in states or _FUNCTION_OF_USER in _text_of(plan):
            return None
        # The canonical plan numbers columns by their position, not by a counter of the session. It has no
        # names of columns, so the schemas are added.
        schemas = [node.schema().json() for node in (plan, *leaves)]
        options = [_options_of(spark, leaf) for leaf in leaves]
        text = _text_of(plan.canonicalized())
        return digest_of([text, schemas, options, states, _stamps(spark, rows.inputFiles())])
    except Py4JError:
        # Another release of Spark, Delta or Iceberg may lack a Java method that is called here, or a folder
        # may have been deleted. In both cases, the caller must compare the rows themselves.
        return None


def _named(parts: Sequence[str], dt: str) -> list[str]:
    """Replaces `{date}` by the digits of the date in each part of a table's name.

    The hyphens of the date are removed, because Spark accepts hyphens only in quoted names.
    """
    return [with_date(part.replace("{date}", dt.replace("-", "")), dt) for part in parts]


def open_table(spark: SparkSession, parts: Sequence[str], name: str, key: str) -> DataFrame | None:
    """Returns the table; None if it does not exist.

    Raises:
        ConfigError: the class path lacks a jar, or the table itself is broken.
        PySparkException, Py4JError: the metastore cannot be reached.
    """
    quoted = ".".join(map(_quoted, parts))
    try:
        if not spark.catalog.tableExists(quoted):
            return None
        # Without this, Spark may use its cached list of files from an earlier run.
        spark.catalog.refreshTable(quoted)
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
    """Checks the types of the columns that the configuration lists, and returns these columns."""
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
        "store it as integers, floats or text, or create a view that converts it; or remove it from the "
        "configuration",
    )


def _storable(rows: DataFrame, name: str) -> Column:
    """Returns a column. Spark's type null becomes text, because Parquet files cannot store it."""
    value = F.col(_quoted(name))
    if isinstance(rows.schema[name].dataType, T.NullType):
        value = value.cast("string").alias(name)
    return value


def _is_of(rows: DataFrame, table: str, name: str, value: str, time_zone: str, key: str) -> Column:
    """Returns the condition of `column=value` in a table's path: the column has this value.

    In a column of times, `value` is a day, and the condition selects all times of this day.
    """
    if name not in rows.columns:
        raise ConfigError(
            f"{key} names the column {name!r}, but the table {table} has the columns {rows.columns}",
            "write columns of the table after its name, each as `/column=value`",
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
    if day is not None and isinstance(kind, T.TimestampType):
        # Python computes the limits of the day, like all other times. Java's time zone rules may differ.
        count = days_since_epoch(day)
        bounds = starts_of_days(np.array([count, count + 1]), time_zone).tolist()
        first, end = (F.timestamp_micros(F.lit(bound)) for bound in bounds)
        return (column >= first) & (column < end)
    if day is not None and isinstance(kind, T.TimestampNTZType):
        first, end = (F.lit(f"{one} 00:00:00").cast(kind) for one in (day, day + timedelta(days=1)))
        return (column >= first) & (column < end)
    raise ConfigError(
        f"{key}: the column {name!r} of the table {table} has the type {kind.simpleString()}, which cannot "
        f"be compared with {value!r}",
        "use a column of the type string, date or timestamp, or create a view with such a column",
    )


def _text_of(plan: Any) -> str:
    """Returns the text of a Spark query plan, with the names of all fields."""
    return str(plan.treeString(True, False, _MOST_FIELDS, False))


def _options_of(spark: SparkSession, leaf: Any) -> list[list[str]]:
    """Returns the options with which Spark reads files, as [name, value], such as the separator of a CSV.

    Spark replaces the values of secrets by a fixed text. Paths are left out, because `_stamps` returns them.
    """
    if not _reads_files(leaf):
        return []
    configuration = spark._jsparkSession.sessionState().conf()
    options = _elements(configuration.redactOptions(leaf.relation().options()).toSeq())
    pairs = [[option._1().lower(), option._2()] for option in options]
    return sorted(pair for pair in pairs if pair[0] not in _PATHS)


def _reads_files(leaf: Any) -> bool:
    """Returns whether a leaf of a Spark query plan is a table of files that Spark itself reads."""
    name = leaf.getClass().getSimpleName()
    return name == "LogicalRelation" and leaf.relation().getClass().getSimpleName() == "HadoopFsRelation"


def _state_of_leaf(leaf: Any) -> str | None:
    """Returns a text that, together with the list of files, identifies the state of a source in Spark's plan.

    The text is empty if the list of files alone identifies the state, or if the source has no state. Returns
    None if the state is unknown.
    """
    name = leaf.getClass().getSimpleName()
    if name == "OneRowRelation":
        return ""
    if _reads_files(leaf):
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
    """Returns the version of a Delta table with deletion vectors as text.

    Deletion vectors change the rows of a table without changing its data files. For other tables, the text is
    empty.
    """
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
    """Returns the elements of a Scala sequence."""
    return [sequence.apply(index) for index in range(sequence.size())]


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
