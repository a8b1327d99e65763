"""Checks the first rows of tables other than the log, so that an invalid table stops a run early."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import DataError
from conf.messages import counted
from conf.raw_types import Encoding, RawTable, format_settings
from etl.raw import row_rules
from etl.raw.file_columns import common_header, positions_in
from etl.raw.file_splits import FileSplit, compression, read_blocks
from etl.raw.rejected_lines import RejectedLine, description, remedy
from etl.raw.text_values import split_fields, typed_column
from etl.readers.base import RawBlock, TableReader, open_table

_ROWS = 100  # Number of rows that are checked in each file.
_BYTES = 1 << 16  # Number of bytes of text that are read at once.
_GROUP_BYTES = 64 << 20  # Row groups and stripes that are larger than this are not read.


def check_heads(
    table: RawTable, paths: Sequence[str], section: str, id_column: str | None, *, is_unique: bool = False
) -> None:
    """Checks every file of a table: its header or schema, and the values of its first rows.

    The function reads at most the first block of a text file, and the first row group or stripe of other
    files. Spark may still refuse the table later, because Spark reads fewer types of columns.

    Args:
        table: a table other than the log. All rows of the table must be valid.
        paths: the files of the table. Each of them is checked.
        section: the name of the section that describes the table, for error messages.
        id_column: the column with ids of users or items; None if there is none.
        is_unique: whether each id may have only one row.

    Raises:
        DataError: a file is damaged or lacks a column, a row cannot be parsed, or an id that must be unique
            occurs twice in the first rows of a file. The message contains file, line and value, or the id.
        ConfigError: the type of a column in the file does not fit its declared type.
    """
    heads: Iterator[_Head]
    settings = format_settings(table.format)
    if settings.is_separated and settings.is_row_per_line:
        positions: list[int | None] = list(range(len(table.columns)))
        width = len(table.columns)
        if table.format == "csv":
            positions, width = positions_in(common_header(paths, table), table, paths)
        heads = (_head_of_text(path, table, positions, width, id_column) for path in paths)
    else:
        reader = open_table(table, tuple(paths))  # `open` checks the columns of every file
        firsts: dict[str, FileSplit] = {}
        for file_split in reader.splits(_BYTES):
            firsts.setdefault(file_split.path, file_split)
        heads = (_head_of_rows(reader, file_split, id_column) for file_split in firsts.values())
    for head in heads:
        if head.rejected is not None:
            raise unusable(table, section, head.rejected)
        if is_unique and head.ids is not None:
            _require_unique(head.path, head.ids, id_column)


@dataclass(frozen=True)
class _Head:
    """The first rows of a file.

    Attributes:
        path: the path of the file.
        rejected: the first of these rows that cannot be parsed; None if there is none.
        ids: the ids of users or items; None if they were not read.
    """

    path: str
    rejected: RejectedLine | None = None
    ids: pa.Array | None = None


def _require_unique(path: str, ids: pa.Array, id_column: str | None) -> None:
    """Raises DataError if two of the ids are equal."""
    values = ids.dictionary.take(ids.indices) if isinstance(ids, pa.DictionaryArray) else ids
    counts = values.drop_null().value_counts()
    twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if len(twice):
        raise DataError(
            f"{path}: more than one of the first rows has {id_column}={twice[0].as_py()!r}",
            f"keep exactly one row for each value of {id_column}",
        )


def unusable(table: RawTable, section: str, first: RejectedLine, count: int | None = None) -> DataError:
    """Returns the error for a table with rows that cannot be parsed.

    Args:
        table, section: the table, and the configuration section that describes it.
        first: the first of these rows, with its file, line number, reason and text.
        count: number of these rows; None if it is not known.
    """
    do = "does" if count == 1 else "do"
    total = f"{counted(count, 'row')} {do} not parse; the first is " if count is not None else ""
    return DataError(
        f"{first.file}: {total}{description(table, first)}",
        f"correct the file or {section} in the configuration: {remedy(table, section, first)}",
    )


def _head_of_text(
    path: str, table: RawTable, positions: Sequence[int | None], width: int, id_column: str | None
) -> _Head:
    skipped = 1 if table.format == "csv" else 0
    lines = list(islice(_lines(path, table.encoding), skipped, skipped + _ROWS))
    text = pa.array([line.decode("utf-8", errors="replace") for line in lines], pa.string())
    is_utf8 = [shown.encode() == line for shown, line in zip(text.to_pylist(), lines, strict=True)]
    fields, unsplit = split_fields(text, table.field_separator, width, quoted=table.format == "csv")
    reasons = pc.coalesce(
        pc.if_else(pa.array(is_utf8, pa.bool_()), pa.scalar(None, pa.string()), "not_utf8"), unsplit
    )
    ids = None
    for column, position in zip(table.columns, positions, strict=True):
        if position is None:  # the column is optional, and the file does not have it
            continue
        values, malformed = typed_column(
            fields[position], column, table.null_values, table.time_zone, table.decimal_separator
        )
        if malformed is not None:
            reasons = pc.coalesce(reasons, malformed)
        if column.name == id_column:
            ids = values
        if column.name == id_column and column.type == "string":
            bad = pc.fill_null(row_rules.are_bad_keys(values), False)
            reason = pc.if_else(bad, row_rules.reason(column.name), pa.scalar(None, pa.string()))
            reasons = pc.coalesce(reasons, reason)
    rejected = np.flatnonzero(reasons.is_valid())
    if not len(rejected):
        return _Head(path, ids=ids)
    index = int(rejected[0])
    return _Head(path, RejectedLine(path, index + skipped + 1, reasons[index].as_py(), text[index].as_py()))


def _lines(path: str, encoding: Encoding) -> Iterator[bytes]:
    """Yields the lines of a text file. Reads the file block by block."""
    end = None if compression(path) else _BYTES
    for block in read_blocks(FileSplit(path, 0, end), _BYTES, encoding):
        yield from bytes(block).removesuffix(b"\n").split(b"\n")


def _head_of_rows(reader: TableReader, file_split: FileSplit, id_column: str | None) -> _Head:
    """Returns the first rows of a file that is not text, with the first of _ROWS rows that has a bad value.

    Args:
        reader: the reader of the table.
        file_split: the first split of the file.
        id_column: the column with ids of users or items; None if there is none.
    """
    path, table = file_split.path, reader.table
    if file_split.bytes > _GROUP_BYTES:
        return _Head(path)
    block = next(iter(reader.blocks(file_split, table.names)), None)
    if block is None:
        return _Head(path)
    text_id = id_column if id_column is not None and table.type_of(id_column) == "string" else None
    first = first_reasons(block, text_id)
    rejected = [line for line in first if line < _ROWS]
    if not rejected:
        return _Head(path, ids=None if id_column is None else block.columns[id_column])
    line = min(rejected)
    return _Head(path, RejectedLine(path, line + 1, first[line], block.texts([line])[0]))


def first_reasons(block: RawBlock, text_id: str | None) -> dict[int, str]:
    """Maps the index of each rejected line in a block to the reason for which the line is rejected.

    Args:
        block: rows of a reader, before the rules for ids are applied.
        text_id: the column of strings with ids of users or items; None if there is none.
    """
    reasons = dict(block.broken)
    reasons |= {int(block.row_lines[row]): reason for row, reason in block.malformed.items()}
    if text_id is not None:
        ids = block.columns[text_id]
        is_bad = pc.fill_null(row_rules.are_bad_keys(ids.dictionary), False)
        if pc.any(is_bad).as_py():
            rows = np.flatnonzero(pc.fill_null(is_bad.take(ids.indices), False))
            for row in rows.tolist():
                reasons.setdefault(int(block.row_lines[row]), row_rules.reason(text_id))
    return reasons
