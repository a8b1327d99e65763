"""Reads raw Parquet files by Spark expressions: a second implementation of the values' rule, for comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.errors import DataError
from conf.raw_types import LIST_TYPES, TIME_TYPES, EventTime, OperatorType, RawTable, operator_type
from conf.raw_types import Column as RawColumn
from conf.time_notation import UTC
from etl.raw.file_columns import Stored, no_text, read_footer, stored_columns
from etl.raw.row_rules import NANOSECONDS
from etl.raw.text_values import EXACT_BELOW
from storage.feature_spec import FLOAT32_MAX
from tests.etl.log_rows import FILE, LINE, LINE_NUMBER, REASON

SOURCE_COLUMNS = ("row_id", FILE, LINE_NUMBER, LINE)


# The time in µs, if the column of `log.event_time` is a Parquet timestamp. Null in files where it is not.
EXACT_TIME = "_exact_time"


# The types of the columns of the frame.
SPARK_TYPES: Mapping[OperatorType, str] = {
    "int": "bigint",
    "float": "double",
    "string": "string",
    "ints": "array<bigint>",
    "strings": "array<string>",
}


_KINDS = {"int": "integer", "float": "number", "bool": "boolean", "decimal": "decimal"}


_NO_COLUMN = "_no_column"  # is read, as null, from files that have none of the listed columns


@dataclass(frozen=True)
class ParquetFile:
    """What the footer of a file says about the listed columns of a table.

    Attributes:
        path: the path of the file.
        rows: number of rows.
        stored: for each column of the table, how it is stored.
    """

    path: str
    rows: int
    stored: tuple[Stored, ...]


def read_parquet_rows(
    spark: SparkSession, table: RawTable, paths: Sequence[str], event_time: EventTime | None = None
) -> DataFrame:
    """Reads Parquet files. Returns a frame with the columns of tests.etl.log_rows.read_log.

    `row_id` counts the rows of all files from 0, and `_line_number` those of a file from 1. `_line` has the
    listed columns of the row as JSON. Empty files (0 bytes) are ignored. If a file stores the time as a
    timestamp, the frame also has the column `_exact_time`.

    Args:
        spark: the session.
        table: names and types of the columns.
        paths: paths of the files, in the order of their rows.
        event_time: the section `log.event_time`; None for a table without times.

    Raises:
        DataError: a file is damaged, lacks a column, or has a value that has no text without a risk.
        ConfigError: a column has a Parquet type that its declared type cannot hold.
    """
    files = read_footers(table, paths, event_time)
    first_rows: dict[str, int] = {}
    groups: dict[tuple[Stored, ...], list[str]] = {}
    total = 0
    for file in files:
        first_rows[file.path] = total
        total += file.rows
        groups.setdefault(file.stored, []).append(file.path)
    has_exact = any(
        stored.unit and column.type == "int"
        for file in files
        for column, stored in zip(table.columns, file.stored, strict=True)
    )
    parts = [
        _Group(spark, table, stored, tuple(group), event_time if has_exact else None).rows(first_rows)
        for stored, group in groups.items()
    ]
    return reduce(DataFrame.unionByName, parts)


@dataclass(frozen=True)
class _Group:
    """Files in which each listed column is stored in the same way.

    Attributes:
        spark, table: the session, and the table.
        stored: for each column of the table, how it is stored.
        paths: paths of the files.
        event_time: the section `log.event_time` if a file of the day stores the time as a timestamp.
    """

    spark: SparkSession
    table: RawTable
    stored: tuple[Stored, ...]
    paths: tuple[str, ...]
    event_time: EventTime | None

    def rows(self, first_rows: Mapping[str, int]) -> DataFrame:
        """Returns the rows of the files, typed, with their `row_id`."""
        raw = self._raw()
        self._require_exact_texts(raw)
        starts = self.spark.createDataFrame(
            [(name, path, first_rows[path]) for name, path in self._spark_names(raw).items()],
            f"_name string, {FILE} string, _first long",
        )
        numbered = raw.join(F.broadcast(starts), "_name").withColumns(
            {
                "row_id": F.col("_first") + F.col("_index"),
                LINE_NUMBER: F.col("_index") + 1,
                LINE: F.to_json("_raw"),
            }
        )
        columns: dict[str, Column] = {}
        reasons: list[Column] = [F.lit(None).cast("string")]
        for column, stored in zip(self.table.columns, self.stored, strict=True):
            columns[column.name], rejected = self._typed(column, stored)
            if rejected is not None:
                reasons.append(F.when(rejected, F.lit(f"{_KINDS[column.type]}:{column.name}")))
        if self.event_time is not None:
            columns[EXACT_TIME] = self._exact_time(self.event_time)
        return evaluated_once(numbered, columns, reasons, SOURCE_COLUMNS)

    def _raw(self) -> DataFrame:
        """Returns a frame with the listed columns as the struct `_raw`, and `_name` and `_index` of a row.

        `_name` is Spark's name of the file, and `_index` the position of the row in it.
        """
        types = {
            column.source_name: stored.kind
            for column, stored in zip(self.table.columns, self.stored, strict=True)
            if stored.kind is not None
        }
        types = types or {_NO_COLUMN: "string"}
        schema = ", ".join(f"{_quoted(name)} {kind}" for name, kind in types.items())
        # Writers may store a checksum with each page. Without it, a damaged page may decode to other values.
        reader = self.spark.read.option("parquet.page.verify-checksum.enabled", "true")
        return (
            reader.schema(schema)
            .parquet(*self.paths)
            .select(
                F.struct(*(F.col(_quoted(name)) for name in types)).alias("_raw"),
                F.col("_metadata.file_path").alias("_name"),
                F.col("_metadata.row_index").alias("_index"),
            )
        )

    def _spark_names(self, raw: DataFrame) -> dict[str, str]:
        """Returns a mapping from Spark's name of each file that has rows to its path."""
        names = [row["_name"] for row in raw.select("_name").distinct().collect()]
        return paths_by_spark_name(self.paths, names)

    def _require_exact_texts(self, raw: DataFrame) -> None:
        """Raises DataError if a value of a `string` column has no text that is certainly right.

        Such a row is not quarantined: a rounded id is a valid id of somebody else, so the whole column is
        in doubt.
        """
        checks = {
            column: is_inexact
            for column, stored in zip(self.table.columns, self.stored, strict=True)
            if (is_inexact := _has_no_text(column, stored, _field(column))) is not None
        }
        if not checks:
            return
        place = ("_name", "_index")
        counts = raw.agg(
            *(
                F.min(F.when(check, F.struct(*place, _field(column).alias("value")))).alias(f"first{number}")
                for number, (column, check) in enumerate(checks.items())
            ),
            *(
                F.count(F.when(check, 1)).alias(f"count{number}")
                for number, check in enumerate(checks.values())
            ),
        ).first()
        for number, column in enumerate(checks):
            first = counts[f"first{number}"] if counts else None
            if first is None or counts is None:
                continue
            path = paths_by_spark_name(self.paths, [first["_name"]])[first["_name"]]
            raise no_text(path, column, first["_index"] + 1, first["value"], counts[f"count{number}"])

    def _typed(self, column: RawColumn, stored: Stored) -> tuple[Column, Column | None]:
        """Returns the value of a column in its declared type, and the condition that it is malformed."""
        spark_type = SPARK_TYPES[operator_type(column)]
        if stored.kind is None:
            return F.lit(None).cast(spark_type), None
        value = _field(column)
        if column.type in (*LIST_TYPES, *TIME_TYPES) or stored.unit:
            return self._list_or_time(column, stored, value), None
        if stored.kind in ("string", "binary"):
            return _of_texts(F.decode(value, "UTF-8") if stored.kind == "binary" else value, column.type)
        if stored.kind in EXACT_BELOW:
            value = F.when(~F.isnan(value), value)
        if column.type == "string":
            return _text_of(value, stored.kind), None
        return _of_numbers(value, stored.kind, column.type)

    def _list_or_time(self, column: RawColumn, stored: Stored, value: Column) -> Column:
        """Returns the values of a list, without null and empty elements, or of a date or a time."""
        if column.type in LIST_TYPES:
            kept = F.filter(value, lambda element: element.isNotNull() & (element.cast("string") != ""))
            return kept.cast(SPARK_TYPES[operator_type(column)])
        if column.type == "date":
            return F.unix_date(value).cast("bigint")
        unit = self.event_time.unit if column.type == "int" and self.event_time is not None else "us"
        return self._instant(value, stored, unit)

    def _exact_time(self, event_time: EventTime) -> Column:
        """Returns the time in µs; null in files whose times are not timestamps."""
        for column, stored in zip(self.table.columns, self.stored, strict=True):
            if column.name == event_time.column and stored.unit:
                return self._instant(_field(column), stored, "us")
        return F.lit(None).cast("bigint")

    def _instant(self, value: Column, stored: Stored, unit: str) -> Column:
        """Returns a timestamp as an integer of a unit, since 1970-01-01 UTC, rounded down.

        A timestamp without a time zone is in that of the table.
        """
        if not stored.is_local or self.table.time_zone == UTC:
            return _in_unit(value, stored.unit, unit)
        local = F.timestamp_micros(_in_unit(value, stored.unit, "us"))
        return _in_unit(F.unix_micros(F.to_utc_timestamp(local, self.table.time_zone)), "us", unit)


@cache
def _quoted(name: str) -> str:
    """Returns a column's name in backticks: Spark treats a dot in an unquoted name as access to a field."""
    return "`" + name.replace("`", "``") + "`"


def _field(column: RawColumn) -> Column:
    return F.col("_raw").getField(column.source_name)


def _of_texts(value: Column, kind: str) -> tuple[Column, Column | None]:
    """Returns the values of texts in the type `kind`, and the condition that a text is malformed."""
    text = empty_to_null(value)
    if kind == "string":
        return text, None
    number = integer_of(text) if kind == "int" else number_of(text)
    return number, text.isNotNull() & number.isNull()


def _of_numbers(value: Column, stored: str, kind: str) -> tuple[Column, Column | None]:
    """Returns the values of numbers in a declared type, and the condition that one is malformed."""
    typed = value.cast("bigint" if kind == "int" else "double")
    if kind == "bool":
        fits = typed.isin(0.0, 1.0)
        typed = typed.cast("bigint")
    elif stored in ("boolean", "int", "bigint"):
        return typed, None
    elif kind in ("float", "decimal"):
        fits = F.abs(typed) <= FLOAT32_MAX
    elif stored in EXACT_BELOW:
        fits = (typed.cast("double") == value) & (F.abs(value) < EXACT_BELOW[stored])
    else:
        fits = typed == value
    return F.when(fits, typed), value.isNotNull() & ~F.coalesce(fits, F.lit(False))


def _has_no_text(column: RawColumn, stored: Stored, value: Column) -> Column | None:
    """Returns the condition that a value has no certain text; None if each value of the column has one."""
    kind = stored.kind or ""
    if kind == "binary":
        return F.decode(value, "UTF-8").cast("binary") != value
    if column.type != "string":
        return None
    if kind in EXACT_BELOW:
        is_whole = value.cast("bigint").cast("double") == value.cast("double")
        return value.isNotNull() & ~F.isnan(value) & ~(is_whole & (F.abs(value) < EXACT_BELOW[kind]))
    if kind.startswith("decimal") and not kind.endswith(",0)"):
        return F.floor(value) != value
    return None


def _text_of(value: Column, kind: str) -> Column:
    """Returns the text of a whole number."""
    if kind in EXACT_BELOW:
        return value.cast("bigint").cast("string")
    return (F.floor(value) if kind.startswith("decimal") else value).cast("string")


def _in_unit(value: Column, stored: str, wanted: str) -> Column:
    """Converts a timestamp to an integer of the unit `wanted`, rounded down. A value beyond 64 bits is null.

    A timestamp without a time zone is treated as one in UTC.
    """
    if stored == "int96":
        value, stored = F.unix_micros(value), "us"
    if NANOSECONDS[stored] <= NANOSECONDS[wanted]:
        return floor_divide(value, NANOSECONDS[wanted] // NANOSECONDS[stored])
    scale = NANOSECONDS[stored] // NANOSECONDS[wanted]
    last = (2**63 - 1) // scale
    return F.when(value.between(-last, last), value * scale)


def evaluated_once(
    rows: DataFrame, columns: dict[str, Column], reasons: Sequence[Column], source: Sequence[str]
) -> DataFrame:
    """Returns the columns `source` of `rows`, the typed `columns`, and `_reason`.

    Each value is computed only once. Without this function, Spark's optimizer would push a filter on
    `_reason` below this projection. Then every row would be split and cast again for each column on which the
    reason depends. To prevent this, the typed columns and the reason are put into an array of one struct,
    which is exploded immediately.
    """
    cell = F.struct(
        *(value.alias(name) for name, value in columns.items()), F.coalesce(*reasons).alias(REASON)
    )
    return rows.select(*source, F.explode(F.array(cell)).alias("_cell")).select(*source, "_cell.*")


def empty_to_null(text: Column) -> Column:
    """Returns a text, or null for an empty text."""
    return F.when(text != "", text)


def paths_by_spark_name(paths: Sequence[str], spark_names: Iterable[str]) -> dict[str, str]:
    """Returns a mapping from Spark's name of each file to the path of the file in `paths`.

    Spark's name has a scheme before the path, and escapes for blanks and percent signs.
    """
    path_of = {_without_scheme(path): path for path in paths}
    return {name: path_of[_without_scheme(unquote(name))] for name in spark_names}


def _without_scheme(path: str) -> str:
    """Returns a path without its scheme, such as /x for file:///x, and /bucket/x for s3a://bucket/x."""
    return "/" + path.split(":", 1)[1].lstrip("/") if ":" in path.split("/", 1)[0] else path


_INTEGER = r"^[+-]?[0-9]{1,19}([.]0*)?$"


# [.] instead of \., because the accelerator does not support a repeated escaped character.
_NUMBER = r"^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?$"


def integer_of(text: Column) -> Column:
    """Converts a text to a bigint. The cast cuts off the fraction, which consists of zeros."""
    return F.when(text.rlike(_INTEGER), text.cast("bigint"))


def number_of(text: Column) -> Column:
    """Converts a text to a double."""
    number = F.when(text.rlike(_NUMBER), text.cast("double"))
    return F.when(F.abs(number) <= FLOAT32_MAX, number)


def floor_divide(value: Column, divisor: int) -> Column:
    """Returns the quotient of integers, rounded down, so that times before 1970 stay in order."""
    if divisor == 1:
        return value
    quotient = F.call_function("div", value, F.lit(divisor))
    return quotient - (value < quotient * divisor).cast("bigint")


def read_footers(
    table: RawTable, paths: Sequence[str], event_time: EventTime | None = None
) -> list[ParquetFile]:
    """Reads the footers of Parquet files, except those of empty files, and checks the listed columns.

    Raises:
        DataError, ConfigError: see `read_parquet_rows`.
    """
    files = []
    for path in paths:
        footer = read_footer(path)
        if footer is not None:
            stored = stored_columns(path, footer, table, event_time)
            files.append(ParquetFile(path, footer.num_rows, stored))
    if not files:
        raise DataError(f"{paths[0]} is empty (0 bytes)", "deliver the file again")
    return files
