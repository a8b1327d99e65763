"""Reads all rows of a table that is not the log, such as attributes of users or items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from conf.raw_types import RawTable
from etl.raw.rejected_lines import RejectedLine
from etl.readers.arrow_values import null_values, one_array
from etl.readers.base import RawBlock, open_table
from etl.readers.table_heads import first_reasons, unusable


@dataclass(frozen=True)
class ReadBlock:
    """The rows of a block that has no rejected rows, and their position in the file.

    Attributes:
        path: path of the file.
        line_numbers: (n,) int64: for each row, the number of its line in the file, from 1.
        columns: for each column of the table, an array of n values.
    """

    path: str
    line_numbers: np.ndarray
    columns: Mapping[str, pa.Array]


def read_whole_table(
    table: RawTable, paths: tuple[str, ...], section: str, text_id: str | None = None
) -> tuple[pa.Table, list[ReadBlock]]:
    """Reads all rows of a table. Each row must be valid.

    Args:
        table: names and types of the columns.
        paths: paths of the files.
        section: the section of the configuration, for error messages.
        text_id: the column of strings with ids of users or items, which must obey the rule for ids in
            etl/raw/row_rules.py; None if there is none.

    Returns:
        A table with the columns of `table`, in the order of the files and lines, and the blocks of the table.
        Each column is one chunk: a dictionary array of int64, double or string, or an array of lists.
        Dictionaries contain no null, but may contain a value twice. For example, the texts `7` and `07` are
        the same integer.

    Raises:
        DataError: a file is damaged or lacks a column, or rows cannot be parsed.
        ConfigError: a column is stored with a type that its declared type cannot hold.
    """
    read: list[ReadBlock] = []
    rejected: list[RejectedLine] = []
    bad = 0
    for path, first_line, block in _blocks(table, paths):
        reasons = first_reasons(block, text_id)
        if reasons:  # keep only the first rejected row of each file, because the message shows no other rows
            bad += len(reasons)
            line = min(reasons)
            if not any(known.file == path for known in rejected):
                text = block.texts([line])[0]
                rejected.append(RejectedLine(path, first_line + line + 1, reasons[line], text))
        elif not bad:
            read.append(ReadBlock(path, first_line + block.row_lines + 1, block.columns))
    if bad:
        raise unusable(table, section, min(rejected, key=lambda line: (line.file, line.line_number)), bad)
    return _joined(table, read), read


def _blocks(table: RawTable, paths: tuple[str, ...]) -> Iterator[tuple[str, int, RawBlock]]:
    """Yields the blocks of all files in order: (path, number of lines of the file before it, block)."""
    reader = open_table(table, paths)
    path, lines = "", 0
    for file_split in reader.splits():
        if file_split.path != path:
            path, lines = file_split.path, 0
        for block in reader.blocks(file_split, table.names):
            yield path, lines, block
            lines += block.lines


def _joined(table: RawTable, read: Sequence[ReadBlock]) -> pa.Table:
    """Returns the rows of all blocks.

    If there are no blocks, the columns have the types that the table declares.
    """
    columns = {}
    for column in table.columns:
        chunks = [block.columns[column.name] for block in read] or [null_values(column, 0)]
        columns[column.name] = one_array(pa.chunked_array(chunks))
    return pa.table(columns)
