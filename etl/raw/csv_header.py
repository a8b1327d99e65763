"""Reads the headers of csv files, and finds the columns of a table in them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pyarrow as pa

from conf.errors import DataError
from conf.raw_types import SEPARATORS
from conf.types import RawTable
from etl.raw import text_values
from etl.raw.file_splits import NOT_COMPRESSED, compression
from storage import file_io

_LONGEST_HEADER_BYTES = 1 << 20
_SHOWN = 200  # maximum number of bytes of an invalid header in an error message


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
        DataError: a file is empty or damaged. Or a header is too long, is not UTF-8, has an unmatched quote,
            or differs from the header of the first file.
    """
    headers = {path: _first_line(path) for path in paths}
    first = next(iter(headers.values()))
    for path, header in headers.items():
        if header != first:
            raise DataError(
                f"{path} has the header {header!r}, but {paths[0]} has the header {first!r}",
                "deliver files with the same header",
            )
    fields = text_values.split_line(first, table.field_separator)
    if fields is None:
        raise DataError(
            f"{paths[0]}: the header has an unmatched quote: {first[:_SHOWN]!r}",
            _separator_remedy(first, table) or "correct the first line of the file",
        )
    return fields


def _separator_remedy(header: str, table: RawTable) -> str | None:
    """Returns the remedy if another separator fits the header better than the table's; otherwise None.

    A separator fits better if it finds more of the table's columns in the header. If the table's separator
    does not divide the header at all, any separator that divides it fits better.
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
    """Returns the number of the table's columns that a separator finds, and the number of fields."""
    names = text_values.split_line(header, separator) or []
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


# Reads compressed raw text that Spark cannot read, and finds damaged files.


def first_bytes(path: str, length: int) -> bytes:
    """Returns the first `length` bytes of a raw file after decompression.

    Raises:
        DataError: the file cannot be decompressed.
    """
    files, inner = file_io.filesystem(path)
    codec = compression(path)
    with files.open_input_stream(inner, compression=None) as raw:
        if codec is None:
            return bytes(raw.read(length))
        try:
            return bytes(pa.CompressedInputStream(raw, codec).read(length))
        except OSError as error:
            raise _damaged(path, error) from error


def _damaged(path: str, error: OSError) -> DataError:
    return DataError(f"{path} cannot be decompressed: {error}", NOT_COMPRESSED)
