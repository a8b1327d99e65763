"""Finds the columns of a raw table in its files: in headers of csv files, and in footers of Parquet files.

A column is listed if the configuration names it. The footer of a file contains the Parquet types of its
columns, and shows whether the file is complete. The types of listed columns are checked in each file, so
files of a day may store a column with different types. Columns that are not listed may have any type.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from conf.errors import ConfigError, DataError
from conf.raw_types import SEPARATORS, Encoding, EventTime, RawTable
from conf.raw_types import Column as RawColumn
from etl.raw import text_values
from etl.raw.file_splits import NOT_COMPRESSED, as_utf8, compression, refuse_utf16
from etl.raw.text_values import WHOLE_RULE
from storage import file_io

_LONGEST_HEADER_BYTES = 1 << 20
_SHOWN_OF_HEADER = 200  # maximum number of bytes of an invalid header in an error message


def positions_in(
    header: Sequence[str], table: RawTable, paths: Sequence[str]
) -> tuple[list[int | None], int]:
    """Returns, for each column of the table, its index in the header, and the number of fields of the header.

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
    """Returns the column names in the header, which must be the same in all csv files that are not empty.

    Raises:
        DataError: all files are empty; or a file is damaged, or its header is too long, is not UTF-8, has an
            unmatched quote, or differs from the header of the first file.
    """
    lines = ((path, _first_line(path, table.encoding)) for path in paths)
    headers = [(path, line) for path, line in lines if line is not None]
    if not headers:
        raise empty_file(paths[0])
    first_path, first = headers[0]
    for path, header in headers:
        if header != first:
            raise DataError(
                f"{path} has the header {header!r}, but {first_path} has the header {first!r}",
                "deliver files with the same header",
            )
    return _header_fields(first_path, first, table)


def header_of(path: str, table: RawTable) -> list[str] | None:
    """Returns the column names in the header of a csv file; None if the file is empty.

    Raises:
        DataError: see `common_header`.
    """
    line = _first_line(path, table.encoding)
    return None if line is None else _header_fields(path, line, table)


def empty_file(path: str) -> DataError:
    """Returns the error for files of a table that are all empty. `path` is the first of them."""
    return DataError(f"{path} is empty (0 bytes)", "deliver the file again")


def _header_fields(path: str, header: str, table: RawTable) -> list[str]:
    fields = text_values.split_line(header, table.field_separator)
    if fields is None:
        raise DataError(
            f"{path}: the header has an unmatched quote: {header[:_SHOWN_OF_HEADER]!r}",
            _separator_remedy(header, table) or "correct the first line of the file",
        )
    return fields


def _separator_remedy(header: str, table: RawTable) -> str | None:
    """Returns a remedy if another separator fits the header better than the configured one; otherwise None.

    A separator fits better if more of the fields into which it divides the header are columns of the table.
    If the table's separator does not divide the header at all, any separator that divides it fits better.
    """
    fits = {separator: _fit(header, separator, table) for separator in SEPARATORS}
    columns, fields = fits[table.field_separator]

    def rank(separator: str) -> tuple[int, bool, bool, int]:
        columns, fields = fits[separator]
        return columns, fields > 1, separator != " ", fields  # names may contain blanks

    best = max(SEPARATORS, key=rank)
    if fits[best][0] == columns and not (fields <= 1 < fits[best][1]):
        return None
    return (
        f"set `separator: {json.dumps(best)}` for this table in the configuration: this character, and not "
        f"{json.dumps(table.field_separator)}, separates the names of the header"
    )


def _fit(header: str, separator: str, table: RawTable) -> tuple[int, int]:
    """Returns how many of the table's columns a separator finds in a header, and the number of fields."""
    names = text_values.split_line(header, separator) or []
    return sum(column.source_name in names for column in table.columns), len(names)


def _first_line(path: str, encoding: Encoding) -> str | None:
    """Returns the first line of a csv file, which is the header; None if the file is empty.

    Like all lines, the header ends at LF, CR LF or CR. A file with only a byte order mark is empty.
    """
    start = first_bytes(path, _LONGEST_HEADER_BYTES)
    if start in (b"", codecs.BOM_UTF8):
        return None
    refuse_utf16(path, start)
    first = re.split(b"[\r\n]", start, maxsplit=1)[0]
    if len(first) == _LONGEST_HEADER_BYTES:
        raise DataError(
            f"{path}: the first line, which must be the header, is longer than {_LONGEST_HEADER_BYTES} bytes",
            "deliver a csv file whose first line has the names of its columns, or change `format` of this "
            "table in the configuration",
        )
    try:
        # Some spreadsheets write a byte order mark at the start of a file.
        return as_utf8(first.removeprefix(codecs.BOM_UTF8), encoding).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: the header is not UTF-8: {first[:_SHOWN_OF_HEADER]!r}",
            "deliver the file as UTF-8 text, or set `encoding: windows-1252` beside the key `path` of this "
            "table",
        ) from error


# The functions below read the first bytes of raw files, which may be compressed.


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


# The code below reads the footers of Parquet files of raw tables, and checks the types of the listed columns.

_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_SMALLEST_BYTES = 12  # Size of the magic bytes at both ends of a file, and of the footer's length.
_UNREADABLE_CODECS = ("LZO",)  # Compressions for which Arrow has no decoder.
_MOST_DIGITS = 38  # Maximum number of digits of a decimal.
_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}

# Names that messages use: for Parquet types without a logical type, and for unsigned integers.
_PLAIN = {
    "BOOLEAN": "boolean",
    "INT32": "int",
    "INT64": "bigint",
    "FLOAT": "float",
    "DOUBLE": "double",
    "BYTE_ARRAY": "binary",
}
_UNSIGNED = {"UINT_32": "bigint", "UINT_64": "decimal(20,0)"}
_SHOWN = 60  # maximum number of characters of a value in an error message
_HEAD_BYTES = 16
ONE_VALUE = (
    "declare a list of strings with `type: list<string>`, and one of whole numbers with `type: list<int>`; "
    "otherwise store one value in each row"
)
_TEXTS = ("STRING", "ENUM", "JSON")


@dataclass(frozen=True)
class Stored:
    """How a file stores a column that the table lists.

    Attributes:
        kind: name of the stored type; None if all values are null, so that the column need not be read.
        unit: the unit of a timestamp: ms, us or ns; `int96` for a timestamp of 96 bits; empty for other
            types.
        is_local: whether the timestamp has no time zone.
    """

    kind: str | None
    unit: str = ""
    is_local: bool = False


_ABSENT = Stored(None)


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
    """Returns how a file stores each column of a table. Declared types must be int, float or string."""
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
        if len(parts) > 1 or parts[0][1].path != column.source_name or parts[0][1].max_repetition_level:
            raise _refused(path, column, "list, map or struct", ONE_VALUE)
        index, leaf = parts[0]
        of_file = _stored(path, column, leaf, column.name == is_time)
        if of_file.kind is not None:
            _require_readable(path, column, footer, index)
        stored.append(of_file)
    return tuple(stored)


def require_columns(path: str, footer: pq.FileMetaData, table: RawTable) -> None:
    """Raises DataError if a file lacks a column that is not optional."""
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
    """Returns the error for a file that lacks the columns `missing`."""
    return DataError(
        f"{path} has no columns {list(missing)}; its columns are {list(present)}",
        "correct the column names in the configuration (`source`, or `name` if `source` is not set); or "
        "set `optional: true` for a column that files may lack, so that its values are null there",
    )


def has_column(path: str, footer: pq.FileMetaData, column: RawColumn) -> bool:
    """Returns whether a file has a column, plain or nested.

    Raises:
        DataError: the file has two columns whose names are equal, or differ only in case.
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
    """Returns the name of the column to which a leaf of the Parquet schema belongs."""
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
    """Raises DataError if a file has two columns whose names are equal, or differ only in case.

    Spark cannot read such columns.
    """
    plain = [leaf.name for leaf in leaves if leaf.path == leaf.name]
    nested = {_top_name(leaf) for leaf in leaves if leaf.path != leaf.name}
    same = [other for other in (*plain, *nested) if other.lower() == name.lower()]
    if len(same) > 1:
        raise DataError(
            f"{path} has the columns {sorted(same)}, whose names differ at most in upper and lower case",
            "deliver the file with names that differ in more than case",
        )


def _stored(path: str, column: RawColumn, leaf: Any, is_time: bool) -> Stored:
    """Returns how a file stores a plain column.

    Raises ConfigError or DataError if the declared type of the column cannot hold the stored values.
    """
    logical, physical = leaf.logical_type, leaf.physical_type
    kind = logical.type
    shown = physical if kind == "NONE" else f"{physical} ({logical})"
    if str(logical) == "Null":
        return _ABSENT
    if kind == "TIMESTAMP" or physical == "INT96":
        return _stored_time(path, column, leaf, is_time)
    return _stored_scalar(path, column, leaf, shown)


def _stored_scalar(path: str, column: RawColumn, leaf: Any, shown: str) -> Stored:
    """Returns how a file stores a column of strings or numbers.

    `shown` is the name of its Parquet type for error messages.
    """
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
    if kind == "TIME":
        raise _refused(path, column, shown, "declare the column with `type: time`", ConfigError)
    read_as = _UNSIGNED.get(leaf.converted_type) or _PLAIN.get(physical)
    if kind in ("NONE", "INT") and read_as is not None:
        return Stored(read_as)
    raise _refused(path, column, shown, "store it as integers, floats or text, or remove it from `columns`")


def _stored_time(path: str, column: RawColumn, leaf: Any, is_time: bool) -> Stored:
    """Returns how a file stores a timestamp.

    Raises ConfigError if the column is not the event time, or its declared type is not int.
    """
    if not (is_time and column.type == "int"):
        remedy = "declare the column with `type: timestamp`, or remove it from `columns`"
        shown = leaf.physical_type if leaf.physical_type == "INT96" else leaf.logical_type
        raise _refused(path, column, f"timestamp ({shown})", remedy, ConfigError)
    if leaf.physical_type == "INT96":
        return Stored("timestamp", "int96")
    logical = str(leaf.logical_type)
    unit = next(short for name, short in _UNITS.items() if name in logical)
    return Stored("bigint", unit, "isAdjustedToUTC=false" in logical)


def _refused(
    path: str, column: RawColumn, parquet: str, remedy: str, error: type[ConfigError | DataError] = DataError
) -> ConfigError | DataError:
    return error(
        f"{path}: the column {column.source_name!r} has the Parquet type {parquet}, which cannot be read as "
        f"`type: {column.type}`",
        remedy,
    )


def _require_readable(path: str, column: RawColumn, footer: pq.FileMetaData, index: int) -> None:
    """Raises DataError if no decoder exists for the compression of a column."""
    for group in range(footer.num_row_groups):
        chunk = footer.row_group(group).column(index)
        if chunk.compression in _UNREADABLE_CODECS:
            raise DataError(
                f"{path}: the column {column.source_name!r} is compressed with {chunk.compression}, which "
                "cannot be read",
                "write the file with the compression zstd or snappy, and deliver it again",
            )


def no_text(path: str, column: RawColumn, row: int, value: Any, count: int) -> DataError:
    """Returns the error for a value in a column of strings that cannot be read exactly as text.

    Args:
        path, column: path of the file and name of the column.
        row: number of the row in the file, from 1.
        value: the value, as bytes if it is not UTF-8.
        count: number of such values.
    """
    shown = repr(bytes(value)) if isinstance(value, bytes | bytearray) else str(value)
    what = "is not UTF-8" if isinstance(value, bytes | bytearray) else f"has no text: {WHOLE_RULE}"
    more = f" ({count} values of the column)" if count > 1 else ""
    remedy = "store the column as strings in UTF-8, or as integers, and deliver the file again"
    if not isinstance(value, bytes | bytearray):
        remedy += "; if its values are not ids, you can also declare it with `type: float`"
    return DataError(
        f"{path}, row {row}: the value {shown[:_SHOWN]} of the column {column.source_name!r} {what}{more}",
        remedy,
    )


# The code below reads the footers of Parquet files, even if the writer used types that this version of Arrow
# does not support.
#
# Programs that use Arrow store an Arrow schema in the footer, beside the Parquet schema. If the program is
# newer, like delta-rs, this schema may contain types that pyarrow 14 refuses, such as string views. Such a
# file can be read without this schema, because the Parquet types suffice.

_FOOTER_MAGIC = b"PAR1"
_END_BYTES = 8  # Size of the end of a file: the length of the footer, and the magic bytes.
# In a copy of the footer, the second key replaces the first, so that Arrow finds no Arrow schema. Both keys
# must have the same length.
_ARROW_SCHEMA, _UNUSED = b"ARROW:schema", b"-----:schema"


def parquet_metadata(source: pa.NativeFile) -> pq.FileMetaData:
    """Returns the footer of an open Parquet file. The Arrow schema is left out if Arrow cannot read it.

    Raises:
        pa.ArrowException, OSError: the footer is damaged.
    """
    try:
        return pq.read_metadata(source)
    except pa.ArrowInvalid:
        size = source.size()
        end = source.read_at(_END_BYTES, size - _END_BYTES)
        length = int.from_bytes(end[:4], "little")
        footer = source.read_at(length, max(0, size - _END_BYTES - length))
        if _ARROW_SCHEMA not in footer:
            raise
        changed = _FOOTER_MAGIC + footer.replace(_ARROW_SCHEMA, _UNUSED) + end
        return pq.read_metadata(pa.BufferReader(changed))
