"""Reads ORC files. A file split is a range of stripes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyarrow import orc

from conf.errors import DataError
from conf.raw_types import Column, EventTime, RawTable
from etl.raw.file_columns import empty_file
from etl.raw.file_splits import FILE_SPLIT_BYTES, FileSplit
from etl.readers.arrow_blocks import check_schema, typed_block
from etl.readers.base import RawBlock, TableReader
from storage import file_io

_MAGIC = b"ORC"


@dataclass(frozen=True)
class _File:
    """The footer of a file.

    Attributes:
        path: the path of the file.
        bytes: number of bytes of the stripes.
        stripes: number of stripes, which are ORC's groups of rows.
        names: the names of the columns that both the table and the file have, as in the file.
    """

    path: str
    bytes: int
    stripes: int
    names: frozenset[str]


@dataclass(frozen=True)
class OrcReader(TableReader):
    """Reads `orc`.

    Attributes:
        files: the footers of the files that are not empty.
        event_time: the section `log.event_time`; None for a table without times.
    """

    files: tuple[_File, ...]
    event_time: EventTime | None

    @classmethod
    def open(cls, table: RawTable, paths: tuple[str, ...], event_time: EventTime | None = None) -> OrcReader:
        """Reads the footers of all files that are not empty, and checks the listed columns.

        Raises:
            DataError: a file is damaged, lacks a column, or has a column of a type that cannot be read.
            ConfigError: the type of a column in the file does not fit its declared type.
        """
        files = [file for path in paths if (file := _read_footer(path, table, event_time)) is not None]
        if not files:
            raise empty_file(paths[0])
        return cls(table, paths, tuple(files), event_time)

    def splits(self, split_bytes: int | None = None) -> list[FileSplit]:
        """Returns ranges of stripes. A file without rows has one split, which has no stripe."""
        most = split_bytes or FILE_SPLIT_BYTES
        splits = []
        for file in self.files:
            of_stripe = file.bytes // max(1, file.stripes)
            step = max(1, most // max(1, of_stripe))
            for start in range(0, max(1, file.stripes), step):
                end = min(start + step, file.stripes)
                splits.append(FileSplit(file.path, start, end, of_stripe * (end - start)))
        return splits

    def blocks(self, file_split: FileSplit, wanted: Collection[str]) -> Iterator[RawBlock]:
        """Yields the rows of the stripes as one block.

        Raises:
            DataError: the file is damaged, or a value in a string column cannot be written exactly as text
                (see NoTextError).
        """
        file = next(one for one in self.files if one.path == file_split.path)
        rows = _read(file, range(file_split.start, file_split.end or 0), self.table.columns)
        if len(rows):
            before = partial(_rows_before, file, file_split.start)
            yield typed_block(rows, self.table, self.event_time, wanted, file.path, before)


@contextmanager
def _opened(path: str) -> Iterator[orc.ORCFile]:
    """Opens a file. Raises DataError if it is damaged."""
    files, inner = file_io.filesystem(path)
    with files.open_input_file(inner) as source:
        try:
            yield orc.ORCFile(source)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: the ORC file is damaged: {error}", "deliver the file again") from error


def _read_footer(path: str, table: RawTable, event_time: EventTime | None) -> _File | None:
    """Checks the listed columns of a file, and returns its footer; None if the file is empty."""
    files, inner = file_io.filesystem(path)
    with files.open_input_file(inner) as source:
        if source.size() == 0:
            return None
        head = source.read_at(min(source.size(), len(_MAGIC)), 0)
    if head != _MAGIC:
        raise DataError(
            f"{path} is not an ORC file; it begins with {head!r}",
            "deliver ORC files, or correct `path` and `format` of this table in the configuration",
        )
    with _opened(path) as file:
        schema, stripes, size = file.schema, file.nstripes, file.content_length
    return _File(path, size, stripes, frozenset(check_schema(path, schema, table, event_time)))


def _read(file: _File, stripes: Sequence[int], columns: Sequence[Column]) -> pa.Table:
    """Returns the rows of some stripes.

    The result has those of `columns` that the file has, in the order of `columns`.
    """
    names = [column.source_name for column in columns if column.source_name in file.names]
    with _opened(file.path) as source:
        # ORC reads a dot in a name as access to a field of a struct. If a name has a dot, read all columns.
        plain = None if any("." in name for name in names) else names
        parts = [source.read_stripe(stripe, columns=plain) for stripe in stripes]
        if not parts:
            return source.schema.empty_table()
        return pa.Table.from_batches(parts).select(names)


def _rows_before(file: _File, stripe: int) -> int:
    """Returns the number of rows before a stripe of a file, for an error message."""
    with _opened(file.path) as source:
        return sum(len(source.read_stripe(index)) for index in range(stripe))
