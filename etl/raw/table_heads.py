"""Checks the first rows of tables before a run reads its log, so that a run with a bad table ends early."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from conf.counted import counted
from conf.errors import DataError
from conf.raw_types import Column, RawTable
from etl.raw import key_rule
from etl.raw.arrow_parse import split_fields, typed_column
from etl.raw.file_splits import FileSplit, compression, read_blocks
from etl.raw.files import TEXT_FORMATS, RawFiles
from etl.raw.parquet_rows import read_footers
from etl.raw.parse import common_header, positions_in
from etl.raw.rejected_lines import RejectedLine, description, remedy
from storage import file_io

_ROWS = 100  # of each file
_BYTES = 1 << 16  # of text that is read at once
_GROUP_BYTES = 64 << 20  # larger row groups of Parquet files are not read


def check_heads(table: RawTable, raw: RawFiles, section: str, id_column: str | None) -> None:
    """Checks the header or schema, and the values of the first rows, of every file of a table.

    Reads at most the first block of a text file, and the first row group of a Parquet file.

    Args:
        table: the table, which is not the log: all its rows must parse.
        raw: the files of the table.
        section: the section of the configuration, for error messages.
        id_column: the column with ids of users or items; None if there is none.

    Raises:
        DataError: a file is damaged or lacks a column, or a row cannot be parsed. The message names file,
            line and value.
        ConfigError: a column has a Parquet type that its declared type cannot hold.
    """
    rejected: Iterator[RejectedLine | None]
    if table.format == "jsonl":
        return  # its reader checks the first lines when it opens the files
    if table.format == "parquet":
        rejected = (_first_bad_row(file.path, table) for file in read_footers(table, raw.paths))
    elif table.format not in TEXT_FORMATS:  # the reader checks each file when it is opened
        rejected = iter(())
    else:
        positions: list[int | None] = list(range(len(table.columns)))
        width = len(table.columns)
        if table.format == "csv":
            positions, width = positions_in(common_header(raw.paths, table), table, raw.paths)
        rejected = (_first_bad_line(path, table, positions, width, id_column) for path in raw.paths)
    first = next(filter(None, rejected), None)
    if first is not None:
        raise unusable(table, section, first)


def unusable(table: RawTable, section: str, first: RejectedLine, count: int | None = None) -> DataError:
    """Returns the error of a table with rows that cannot be parsed.

    Args:
        table, section: as for `check_heads`.
        first: the first of these rows.
        count: number of these rows; None if it is not known.
    """
    do = "does" if count == 1 else "do"
    total = f"{counted(count, 'row')} {do} not parse; the first is " if count is not None else ""
    return DataError(
        f"{first.file}: {total}{description(table, first)}",
        f"correct the file or {section} in the configuration: {remedy(table, section, first)}",
    )


def _first_bad_line(
    path: str, table: RawTable, positions: Sequence[int | None], width: int, id_column: str | None
) -> RejectedLine | None:
    skipped = 1 if table.format == "csv" else 0
    lines = list(islice(_lines(path), skipped, skipped + _ROWS))
    text = pa.array([line.decode("utf-8", errors="replace") for line in lines], pa.string())
    is_utf8 = [shown.encode() == line for shown, line in zip(text.to_pylist(), lines, strict=True)]
    fields, unsplit = split_fields(text, table.field_separator, width, quoted=table.format == "csv")
    reasons = pc.coalesce(
        pc.if_else(pa.array(is_utf8, pa.bool_()), pa.scalar(None, pa.string()), "not_utf8"), unsplit
    )
    for column, position in zip(table.columns, positions, strict=True):
        if position is None:  # an optional column that the file does not have
            continue
        values, malformed = typed_column(fields[position], column, table.null_values, table.time_zone)
        if malformed is not None:
            reasons = pc.coalesce(reasons, malformed)
        if column.name == id_column and column.type == "string":
            bad = pc.fill_null(key_rule.are_bad_keys(values), False)
            reason = pc.if_else(bad, key_rule.reason(column.name), pa.scalar(None, pa.string()))
            reasons = pc.coalesce(reasons, reason)
    rejected = np.flatnonzero(reasons.is_valid())
    if not len(rejected):
        return None
    index = int(rejected[0])
    return RejectedLine(path, index + skipped + 1, reasons[index].as_py(), text[index].as_py())


def _lines(path: str) -> Iterator[bytes]:
    """Yields the lines of a text file, of which it reads a block at a time."""
    end = None if compression(path) else _BYTES
    for block in read_blocks(FileSplit(path, 0, end), _BYTES):
        yield from bytes(block).removesuffix(b"\n").split(b"\n")


def _first_bad_row(path: str, table: RawTable) -> RejectedLine | None:
    """Returns the first row of a Parquet file with a text or a fraction in a column of numbers."""
    files, inner = file_io.filesystem(path)
    with files.open_input_file(inner) as source:
        parquet = pq.ParquetFile(source)
        schema = parquet.schema_arrow
        checked = [
            column
            for column in table.columns
            if column.type in ("int", "float")
            and column.source_name in schema.names
            and _may_be_malformed(schema.field(column.source_name).type, column)
        ]
        large = not parquet.num_row_groups or parquet.metadata.row_group(0).total_byte_size > _GROUP_BYTES
        if not checked or large:
            return None
        group = parquet.read_row_group(0, columns=[column.source_name for column in checked])
    for number, row in enumerate(group.slice(0, _ROWS).to_pylist(), start=1):
        for column in checked:
            if not _is_number(row[column.source_name], whole=column.type == "int"):
                reason = f"{'integer' if column.type == 'int' else 'number'}:{column.name}"
                return RejectedLine(path, number, reason, json.dumps(row))
    return None


def _may_be_malformed(kind: pa.DataType, column: Column) -> bool:
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return is_text or (pa.types.is_floating(kind) and column.type == "int")


def _is_number(value: str | float | None, *, whole: bool) -> bool:
    """Returns whether a value is null or a number. NaN is left to the reader of Parquet files."""
    if value is None:
        return True
    try:
        number = float(value)
    except ValueError:
        return False
    return not whole or not math.isfinite(number) or number.is_integer()
