"""Parses raw lines to typed columns with the `sql` engine.

Fields are first read as text. So a malformed field only rejects its row and does not stop the job.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.errors import ConfigError, DataError
from conf.raw_types import SEPARATORS
from conf.types import RawTable
from etl.raw import quotes
from etl.raw.arrow_parse import parse_lines
from etl.raw.compressed import first_bytes
from etl.raw.number_text import integer_of, number_of
from etl.raw.row_ids import lines_in_blocks, number_lines
from etl.raw.value_text import literal_pattern

_LONGEST_HEADER_BYTES = 1 << 20
_SQL_TYPES = ("int", "float", "string")  # that Spark expressions read from text
_SHOWN = 200  # maximum number of bytes of an invalid header in an error message

# Columns that this module adds to the table's columns. The underscore prevents equal names.
FILE, LINE_NUMBER, LINE, REASON = "_file", "_line_number", "_line", "_reason"
SOURCE_COLUMNS = ("row_id", FILE, LINE_NUMBER, LINE)
# Columns of `read_text_blocks` that identify a line: `file`, `block` and `index` of etl.raw.row_ids.
SOURCE, START, INDEX = "_source", "_start", "_index"


def read_text_rows(
    spark: SparkSession, table: RawTable, paths: Sequence[str], engine: Literal["sql", "arrow"]
) -> DataFrame:
    """Reads tsv or csv files. Returns a frame with one row per line.

    The columns are `row_id`, `_file`, `_line_number`, `_line`, the typed columns of the table, and `_reason`.
    A field that is one of `table.null_values` is null. `_reason` is null for a valid line, and otherwise the
    first reason to reject the line. The reasons are:

    - `not_utf8`: the line is not valid UTF-8. `_line` has U+FFFD in place of each invalid byte.
    - `quote`: a csv line violates the rule for double quotes (etl/raw/quotes.py).
    - `field_count`: the line has a wrong number of fields.
    - `integer:<column>`: a value is not an integer of 64 bits (etl/raw/number_text.py).
    - `number:<column>`: a value is not a number within the range of float32.
    - `boolean:`, `date:`, `timestamp:`, `decimal:` or `list:<column>`: a value does not have this type.

    Raises:
        DataError: a csv file's header lacks a column or differs from the other headers, or a compressed file
            is damaged.
        ConfigError: no reader can decompress a file, or the engine `sql` cannot read a column's type.
    """
    lines = number_lines(spark, paths).select(
        "row_id",
        F.col("file").alias(FILE),
        F.col("line_number").alias(LINE_NUMBER),
        F.col("line").alias(LINE),
        _not_utf8(),
    )
    positions, width = _fields_of(table, paths)
    if table.format == "csv":
        lines = lines.where(F.col(LINE_NUMBER) > 1)
    if engine == "arrow":
        return parse_lines(lines, table, positions, width, LINE, REASON)
    return _typed(_with_fields(lines, table, positions, width), table, SOURCE_COLUMNS)


def read_text_blocks(spark: SparkSession, table: RawTable, paths: Sequence[str]) -> DataFrame:
    """Reads tsv or csv files in one pass, with Spark expressions. Returns a frame with one row per line.

    The frame has the columns of `read_text_rows`, but instead of `row_id`, `_file` and `_line_number` it has
    `_source`, `_start` and `_index`: the file, block and index of etl.raw.row_ids.lines_in_blocks. The caller
    computes the others from them after it has counted the lines of each block. The first line of each csv
    file, its header, is among the rows.

    Raises:
        DataError, ConfigError: as `read_text_rows`, except that a damaged file makes the Spark job fail.
    """
    lines = lines_in_blocks(spark, paths).select(
        F.col("file").alias(SOURCE),
        F.col("block").alias(START),
        F.col("index").alias(INDEX),
        F.col("line").alias(LINE),
        _not_utf8(),
    )
    positions, width = _fields_of(table, paths)
    return _typed(_with_fields(lines, table, positions, width), table, (SOURCE, START, INDEX, LINE))


def _fields_of(table: RawTable, paths: Sequence[str]) -> tuple[list[int | None], int]:
    """Returns the index of the field of each column of the table, and the number of fields of a line.

    The index is None for an optional column that the files do not have.
    """
    if table.format == "csv":
        return positions_in(common_header(paths, table), table, paths)
    if table.format == "tsv":
        return list(range(len(table.columns))), len(table.columns)
    raise ValueError(f"internal error, please report: {table.format} files have no lines")


def _not_utf8() -> Column:
    return F.when(~F.col("is_utf8"), F.lit("not_utf8")).alias(REASON)


def _with_fields(lines: DataFrame, table: RawTable, positions: Sequence[int | None], width: int) -> DataFrame:
    """Adds `_fields`: the table's fields as strings, or null for a line that does not have `width` fields.

    A csv line that violates the rule for double quotes (etl/raw/quotes.py) gets the reason `quote`.
    """
    fields = F.split(LINE, literal_pattern(table.field_separator), -1)
    if table.format == "tsv":
        return lines.withColumn("_fields", F.when(F.size(fields) == width, fields))
    line = F.col(LINE)
    broken = F.when(quotes.is_broken(line, table.field_separator), F.lit(quotes.REASON))
    plain = ~F.contains(line, F.lit('"'))
    all_fields = F.when(plain, fields).otherwise(quotes.quoted_fields(line, table.field_separator))
    absent = F.lit(None).cast("string")
    table_fields = F.array(
        *(absent if position is None else F.col("_all_fields")[position] for position in positions)
    )
    return (
        lines.withColumn(REASON, F.coalesce(REASON, broken))
        .withColumn("_all_fields", F.when(F.col(REASON).isNull(), all_fields))
        .withColumn("_fields", F.when(F.size("_all_fields") == width, table_fields))
        .drop("_all_fields")
    )


def positions_in(
    header: Sequence[str], table: RawTable, paths: Sequence[str]
) -> tuple[list[int | None], int]:
    """Returns the index of each table column in the header, and the number of fields of the header.

    The index is None for an optional column that is not in the header.

    Raises:
        DataError: the header lacks a column that is not optional, or contains a column more than once.
    """
    missing = [
        column.source_name
        for column in table.columns
        if column.source_name not in header and not column.optional
    ]
    if missing:
        line = table.field_separator.join(header)
        raise DataError(
            f"{paths[0]} has no columns {missing}; its header is {header}",
            _separator_remedy(line, table)
            or "correct the column names in the configuration (`source`, or `name` if `source` is not set), "
            "or the header of the file; or set `optional: true` for a column that files may lack, so that "
            "its values are null",
        )
    repeated = [column.source_name for column in table.columns if header.count(column.source_name) > 1]
    if repeated:
        raise DataError(
            f"{paths[0]} has more than one column named {repeated[0]!r}; its header is {header}",
            "deliver the file with a different name for each column",
        )
    names = [column.source_name for column in table.columns]
    return [header.index(name) if name in header else None for name in names], len(header)


def common_header(paths: Sequence[str], table: RawTable) -> list[str]:
    """Returns the column names in the header, which must be the same in all csv files.

    Raises:
        DataError: a file is empty or damaged, or its header differs from the first file's header, is too
            long, is not UTF-8, or has an unmatched quote.
    """
    headers = {path: _first_line(path) for path in paths}
    first = next(iter(headers.values()))
    for path, header in headers.items():
        if header != first:
            raise DataError(
                f"{path} has the header {header!r}, but {paths[0]} has the header {first!r}",
                "deliver files with the same header",
            )
    fields = quotes.split_line(first, table.field_separator)
    if fields is None:
        raise DataError(
            f"{paths[0]}: the header has an unmatched quote: {first[:_SHOWN]!r}",
            _separator_remedy(first, table) or "correct the first line of the file",
        )
    return fields


def _separator_remedy(header: str, table: RawTable) -> str | None:
    """Returns the remedy for a header with another separator than that of the table; None without one.

    A separator fits better if it finds more of the table's columns. A header of a single field also has
    another separator if another one divides it.
    """
    fits = {separator: _fit(header, separator, table) for separator in SEPARATORS}
    columns, fields = fits[table.field_separator]
    best = max(SEPARATORS, key=lambda separator: fits[separator])
    if fits[best][0] == columns and not (fields <= 1 < fits[best][1]):
        return None
    return (
        f"set `separator: {json.dumps(best)}` for this table in the configuration: this character, and not "
        f"{json.dumps(table.field_separator)}, separates the names of the header"
    )


def _fit(header: str, separator: str, table: RawTable) -> tuple[int, int]:
    """Returns how many of the table's columns a header has with a separator, and its number of fields."""
    names = quotes.split_line(header, separator) or []
    return sum(column.source_name in names for column in table.columns), len(names)


def _first_line(path: str) -> str:
    """Returns the first line of a csv file, which is the header.

    Like all lines, the header ends at LF, CR LF or CR.
    """
    start = first_bytes(path, _LONGEST_HEADER_BYTES)
    first = re.split(b"[\r\n]", start, maxsplit=1)[0]
    if len(first) == _LONGEST_HEADER_BYTES:
        raise DataError(
            f"{path}: the first line, which must be the header, is longer than {_LONGEST_HEADER_BYTES} bytes",
            "deliver a csv file whose first line has the names of its columns, or change `format` of this "
            "table in the configuration",
        )
    try:
        # Some spreadsheets write a byte order mark at the start of a file.
        return first.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: the header is not UTF-8: {first[:_SHOWN]!r}", "deliver the file as UTF-8 text"
        ) from error


def _typed(fields: DataFrame, table: RawTable, source: Sequence[str]) -> DataFrame:
    """Replaces `_fields` by the table's typed columns, and sets `_reason`. Keeps the columns `source`.

    A column of type `int` becomes a bigint, a column of type `float` becomes a double.
    """
    values = {
        column.name: _without_nulls(F.col("_fields")[index], table.null_values)
        for index, column in enumerate(table.columns)
    }
    reasons: list[Column] = [F.col(REASON), F.when(F.col("_fields").isNull(), F.lit("field_count"))]
    columns: dict[str, Column] = {}
    _require_sql_types(table)
    for column in table.columns:
        raw = values[column.name]
        if column.type == "string":
            columns[column.name] = raw
            continue
        if column.type == "int":
            value, kind = integer_of(raw), "integer"
        elif column.type == "float":
            value, kind = number_of(raw), "number"
        else:
            raise ValueError(f"internal error, please report: Spark does not read {column.type} from text")
        columns[column.name] = value
        reasons.append(F.when(raw.isNotNull() & value.isNull(), F.lit(f"{kind}:{column.name}")))
    return evaluated_once(fields, columns, reasons, source)


def _require_sql_types(table: RawTable) -> None:
    """Raises ConfigError if a column has a type that Spark expressions do not read from text."""
    others = {column.name: column.type for column in table.columns if column.type not in _SQL_TYPES}
    if others:
        shown = ", ".join(f"{name} ({kind})" for name, kind in others.items())
        raise ConfigError(
            f"workflow.engine: sql reads only the types {', '.join(_SQL_TYPES)} from text files, but the "
            f"configuration declares {shown}",
            "remove workflow.engine, or set it to arrow; or store the table as Parquet files",
        )


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


def _without_nulls(text: Column, null_values: Sequence[str]) -> Column:
    """Returns a text, or null if it is one of `null_values`, which include the empty text."""
    return F.when(~text.isin(*null_values), text) if len(null_values) > 1 else empty_to_null(text)
