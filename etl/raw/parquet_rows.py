"""Reads Parquet files of raw tables to typed columns, by one rule of values for files of every writer.

The footers of the files are read first, with Arrow. They say which Parquet type each listed column has in
each file, and whether the file is whole. Files with the same types form a group, and Spark reads the listed
columns of each group with these types. Then each column is converted to its declared type. So the files of a
day may have different types, and columns that are not listed may have any type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.errors import ConfigError, DataError
from conf.raw_types import LIST_TYPES, TIME_TYPES, EventTime, OperatorType, RawTable, operator_type
from conf.raw_types import Column as RawColumn
from conf.time_types import UTC
from etl.raw.number_text import integer_of, number_of
from etl.raw.parquet_footers import parquet_metadata
from etl.raw.parse import FILE, LINE, LINE_NUMBER, SOURCE_COLUMNS, empty_to_null, evaluated_once
from etl.raw.row_ids import paths_by_spark_name
from etl.raw.row_rules import NANOSECONDS, floor_divide
from etl.raw.value_text import EXACT_BELOW, WHOLE_RULE
from storage import file_io
from storage.feature_spec import FLOAT32_MAX

# The time in µs, if the column of `log.event_time` is a Parquet timestamp. Null in files where it is not.
EXACT_TIME = "_exact_time"

_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_SMALLEST_BYTES = 12  # magic, length of the footer, magic
_UNREADABLE_CODECS = ("BROTLI", "LZO")  # Spark has no reader for them
_UNREADABLE_ENCODINGS = ("BYTE_STREAM_SPLIT",)
_MOST_DIGITS = 38  # of a decimal in Spark
_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
# The types with which Spark reads columns without a logical type, and integers.
_PLAIN = {
    "BOOLEAN": "boolean",
    "INT32": "int",
    "INT64": "bigint",
    "FLOAT": "float",
    "DOUBLE": "double",
    "BYTE_ARRAY": "binary",
}
# The types of the columns of the frame.
SPARK_TYPES: Mapping[OperatorType, str] = {
    "int": "bigint",
    "float": "double",
    "string": "string",
    "ints": "array<bigint>",
    "strings": "array<string>",
}
_UNSIGNED = {"UINT_32": "bigint", "UINT_64": "decimal(20,0)"}
_KINDS = {"int": "integer", "float": "number", "bool": "boolean", "decimal": "decimal"}
_SHOWN = 60  # maximum number of characters of a value in an error message
_HEAD_BYTES = 16
ONE_VALUE = (
    "declare a list of texts with `type: list<string>`, and one of whole numbers with `type: list<int>`; "
    "otherwise store one value in each row"
)
_TEXTS = ("STRING", "ENUM", "JSON")
_STORED_TIME = (
    "store it as a timestamp or date; on one machine, text files such as csv may have times in any format"
)
_NO_COLUMN = "_no_column"  # is read, as null, from files that have none of the listed columns


@dataclass(frozen=True)
class Stored:
    """How a listed column is stored in a file.

    Attributes:
        spark: the type with which Spark reads it; None if each value is null without reading.
        unit: the unit of a timestamp: ms, us or ns; `int96` for a timestamp of 96 bits; empty for others.
        is_local: whether the timestamp has no time zone.
    """

    spark: str | None
    unit: str = ""
    is_local: bool = False


_ABSENT = Stored(None)


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
    """Reads Parquet files. Returns a frame with the columns of etl.raw.parse.read_text_rows.

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


def read_footer(path: str) -> pq.FileMetaData | None:
    """Returns the footer of a file; None if the file is empty."""
    files, inner = file_io.filesystem(path)
    with files.open_input_file(inner) as source:
        size = source.size()
        if size == 0:
            return None
        head = source.read_at(min(size, _HEAD_BYTES), 0)
        tail = source.read_at(len(_MAGIC), max(0, size - len(_MAGIC)))
        if head.startswith(_ENCRYPTED) or tail == _ENCRYPTED:
            raise DataError(f"{path} is an encrypted Parquet file", "deliver the file without encryption")
        if not head.startswith(_MAGIC):
            raise DataError(
                f"{path} is not a Parquet file; it begins with {head!r}",
                "deliver Parquet files, or correct `path` and `format` of this table in the configuration",
            )
        if tail != _MAGIC or size < _SMALLEST_BYTES:
            raise DataError(f"{path} is cut off: its Parquet footer is missing", "deliver the file again")
        try:
            return parquet_metadata(source)
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{path}: the Parquet footer is damaged: {error}", "deliver the file again"
            ) from error


def stored_columns(
    path: str, footer: pq.FileMetaData, table: RawTable, event_time: EventTime | None
) -> tuple[Stored, ...]:
    """Returns how a file stores each column of a table."""
    require_columns(path, footer, table)
    leaves = _leaves(footer)
    is_time = event_time.column if event_time else None
    stored = []
    for column in table.columns:
        parts = _parts_of(column.source_name, leaves)
        if not parts:
            stored.append(_ABSENT)
            continue
        _require_one_name(path, column.source_name, leaves)
        if column.type in LIST_TYPES:
            stored.append(_stored_list(path, column, [leaf for _, leaf in parts]))
            if stored[-1].spark is not None:
                _require_readable(path, column, footer, parts[0][0])
            continue
        if len(parts) > 1 or parts[0][1].path != column.source_name or parts[0][1].max_repetition_level:
            raise _refused(path, column, "list, map or struct", ONE_VALUE)
        index, leaf = parts[0]
        of_file = _stored(path, column, leaf, column.name == is_time)
        if of_file.spark is not None:
            _require_readable(path, column, footer, index)
        stored.append(of_file)
    return tuple(stored)


def require_columns(path: str, footer: pq.FileMetaData, table: RawTable) -> None:
    """Raises DataError if a file lacks a column of a table that is not optional."""
    leaves = _leaves(footer)
    present = list(dict.fromkeys(_top_name(leaf) for leaf in leaves))
    missing = [
        column.source_name
        for column in table.columns
        if not column.optional and not _parts_of(column.source_name, leaves)
    ]
    if missing:
        raise missing_columns(path, missing, present)


def missing_columns(path: str, missing: Sequence[str], present: Sequence[str]) -> DataError:
    """Returns the error of a file that lacks the columns `missing`."""
    return DataError(
        f"{path} has no columns {list(missing)}; its columns are {list(present)}",
        "correct the column names in the configuration (`source`, or `name` if `source` is not set); or "
        "set `optional: true` for a column that files may lack, so that its values are null there",
    )


def has_column(path: str, footer: pq.FileMetaData, column: RawColumn) -> bool:
    """Returns whether a file has a column, plain or nested.

    Raises:
        DataError: the file has another column whose name differs at most in case.
    """
    leaves = _leaves(footer)
    if not _parts_of(column.source_name, leaves):
        return False
    _require_one_name(path, column.source_name, leaves)
    return True


def leaves_of(footer: pq.FileMetaData, column: RawColumn) -> list[tuple[int, Any]]:
    """Returns the leaves of a column in the Parquet schema of a file, with their indices."""
    return _parts_of(column.source_name, _leaves(footer))


def _leaves(footer: pq.FileMetaData) -> list[Any]:
    return [footer.schema.column(index) for index in range(len(footer.schema))]


def _top_name(leaf: Any) -> str:
    """Returns the name of the column of the table to which a leaf of the Parquet schema belongs."""
    return str(leaf.path if leaf.path == leaf.name else leaf.path.split(".", 1)[0])


def _parts_of(name: str, leaves: Sequence[Any]) -> list[tuple[int, Any]]:
    """Returns the leaves of a column, with their indices: one for a plain column, several for a struct."""
    plain = [(index, leaf) for index, leaf in enumerate(leaves) if leaf.path == leaf.name == name]
    return plain or [
        (index, leaf)
        for index, leaf in enumerate(leaves)
        if leaf.path != leaf.name and leaf.path.startswith(f"{name}.")
    ]


def _require_one_name(path: str, name: str, leaves: Sequence[Any]) -> None:
    """Raises DataError if a file has two columns whose names differ at most in case: Spark reads neither."""
    plain = [leaf.name for leaf in leaves if leaf.path == leaf.name]
    nested = {_top_name(leaf) for leaf in leaves if leaf.path != leaf.name}
    same = [other for other in (*plain, *nested) if other.lower() == name.lower()]
    if len(same) > 1:
        raise DataError(
            f"{path} has the columns {sorted(same)}, whose names differ at most in upper and lower case",
            "deliver the file with names that differ in more than case",
        )


def _stored(path: str, column: RawColumn, leaf: Any, is_time: bool) -> Stored:
    """Returns how a plain column is stored. Raises an error if its declared type cannot hold its values."""
    logical, physical = leaf.logical_type, leaf.physical_type
    kind = logical.type
    shown = physical if kind == "NONE" else f"{physical} ({logical})"
    if str(logical) == "Null":
        return _ABSENT
    if kind == "TIMESTAMP" or physical == "INT96":
        return _stored_time(path, column, leaf, is_time)
    if column.type == "date" and kind == "DATE":
        return Stored("date")
    if column.type in TIME_TYPES:
        raise _refused(path, column, shown, _STORED_TIME, ConfigError)
    if kind != "DECIMAL" and physical == "BYTE_ARRAY" and column.type in ("bool", "decimal"):
        raise _refused(path, column, shown, f"store it as {column.type}, or declare `string`", ConfigError)
    return _stored_scalar(path, column, leaf, shown)


def _stored_scalar(path: str, column: RawColumn, leaf: Any, shown: str) -> Stored:
    """Returns how a text or a number is stored. Messages of errors name its Parquet type `shown`."""
    physical, kind = leaf.physical_type, leaf.logical_type.type
    if kind in _TEXTS:
        return Stored("string")
    if kind == "DECIMAL":
        if leaf.precision > _MOST_DIGITS:
            raise _refused(path, column, f"decimal of {leaf.precision} digits", "store it as text")
        return Stored(f"decimal({leaf.precision},{leaf.scale})")
    if physical == "BOOLEAN" and column.type == "string":
        remedy = "declare the column with `type: int`, which reads 0 and 1"
        raise _refused(path, column, "boolean", remedy, ConfigError)
    read_as = _UNSIGNED.get(leaf.converted_type) or _PLAIN.get(physical)
    if kind in ("NONE", "INT") and read_as is not None:
        return Stored(read_as)
    raise _refused(path, column, shown, "store it as integers, floats or text, or remove it from `columns`")


def _stored_time(path: str, column: RawColumn, leaf: Any, is_time: bool) -> Stored:
    """Returns how a timestamp is stored. Raises ConfigError unless its column is a time.

    It is one if it has the type timestamp, or is the column of the event time with the type int.
    """
    if column.type != "timestamp" and not (is_time and column.type == "int"):
        remedy = "declare the column with `type: timestamp`, or remove it from `columns`"
        shown = leaf.physical_type if leaf.physical_type == "INT96" else leaf.logical_type
        raise _refused(path, column, f"timestamp ({shown})", remedy, ConfigError)
    if leaf.physical_type == "INT96":
        return Stored("timestamp", "int96")
    logical = str(leaf.logical_type)
    unit = next(short for name, short in _UNITS.items() if name in logical)
    return Stored("bigint", unit, "isAdjustedToUTC=false" in logical)


def _stored_list(path: str, column: RawColumn, leaves: Sequence[Any]) -> Stored:
    """Returns how a list is stored. Raises an error unless it is a list of the declared elements."""
    leaf = leaves[0]
    kind = leaf.logical_type.type
    if str(leaf.logical_type) == "Null":
        return _ABSENT
    if len(leaves) > 1 or leaf.max_repetition_level != 1:
        raise _refused(path, column, "of no list, or of a nested list, map or struct", "store lists in it")
    is_text, is_int = kind in _TEXTS, leaf.physical_type in ("INT32", "INT64") and kind in ("NONE", "INT")
    if not (is_text if column.type == "list<string>" else is_int and leaf.converted_type != "UINT_64"):
        shown = f"list of {leaf.physical_type if kind == 'NONE' else leaf.logical_type}"
        raise _refused(path, column, shown, "declare the type of its elements", ConfigError)
    element = "string" if is_text else _UNSIGNED.get(leaf.converted_type) or _PLAIN[leaf.physical_type]
    return Stored(f"array<{element}>")


def _refused(
    path: str, column: RawColumn, parquet: str, remedy: str, error: type[ConfigError | DataError] = DataError
) -> ConfigError | DataError:
    return error(
        f"{path}: the column {column.source_name!r} has the Parquet type {parquet}, which cannot be read as "
        f"`type: {column.type}`",
        remedy,
    )


def _require_readable(path: str, column: RawColumn, footer: pq.FileMetaData, index: int) -> None:
    """Raises DataError if Spark cannot decompress or decode a column."""
    for group in range(footer.num_row_groups):
        chunk = footer.row_group(group).column(index)
        encodings = [name for name in chunk.encodings if name in _UNREADABLE_ENCODINGS]
        if chunk.compression in _UNREADABLE_CODECS or encodings:
            problem = f"encoded with {encodings[0]}" if encodings else f"compressed with {chunk.compression}"
            remedy = "the default encodings" if encodings else "the compression zstd or snappy"
            raise DataError(
                f"{path}: the column {column.source_name!r} is {problem}, which Spark cannot read",
                f"write the file with {remedy}, and deliver it again",
            )


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
            column.source_name: stored.spark
            for column, stored in zip(self.table.columns, self.stored, strict=True)
            if stored.spark is not None
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
        if stored.spark is None:
            return F.lit(None).cast(spark_type), None
        value = _field(column)
        if column.type in (*LIST_TYPES, *TIME_TYPES) or stored.unit:
            return self._list_or_time(column, stored, value), None
        if stored.spark in ("string", "binary"):
            return _of_texts(F.decode(value, "UTF-8") if stored.spark == "binary" else value, column.type)
        if stored.spark in EXACT_BELOW:
            value = F.when(~F.isnan(value), value)
        if column.type == "string":
            return _text_of(value, stored.spark), None
        return _of_numbers(value, stored.spark, column.type)

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
    kind = stored.spark or ""
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


def no_text(path: str, column: RawColumn, row: int, value: Any, count: int) -> DataError:
    """Returns the error of a value of a column of texts that has no certain text.

    Args:
        path, column: the file and the column.
        row: number of the row in the file, from 1.
        value: the value; bytes if they are not UTF-8.
        count: number of such values.
    """
    shown = repr(bytes(value)) if isinstance(value, bytes | bytearray) else str(value)
    what = "is not UTF-8" if isinstance(value, bytes | bytearray) else f"has no text: {WHOLE_RULE}"
    more = f" ({count} values of the column)" if count > 1 else ""
    remedy = "store the column as texts in UTF-8, or as integers, and deliver the file again"
    if not isinstance(value, bytes | bytearray):
        remedy += "; if its values are no ids, you can also declare it with `type: float`"
    return DataError(
        f"{path}, row {row}: the value {shown[:_SHOWN]} of the column {column.source_name!r} {what}{more}",
        remedy,
    )


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
