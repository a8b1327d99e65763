"""Reads ORC files. A file split is a range of stripes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import pyarrow as pa
from pyarrow import orc

from conf.errors import DataError
from conf.raw_types import Column, EventTime, RawTable
from etl.raw.file_splits import FILE_SPLIT_BYTES, FileSplit
from etl.raw.parquet_footers import missing_columns
from etl.readers.arrow_values import (
    NoTextError,
    convert,
    instants,
    malformed_rows,
    null_values,
    reason_of,
    require_type,
    time_zone_of,
)
from etl.readers.base import RawBlock, TableReader
from etl.readers.row_json import row_texts
from storage import file_io

_MAGIC = b"ORC"


@dataclass(frozen=True)
class _File:
    """The footer of a file.

    Attributes:
        path: the path of the file.
        bytes: size of the content.
        stripes: number of stripes.
        names: the columns of the table that the file has, by their names in the file.
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

    formats: ClassVar[tuple[str, ...]] = ("orc",)
    files: tuple[_File, ...]
    event_time: EventTime | None

    @classmethod
    def open(cls, table: RawTable, paths: tuple[str, ...], event_time: EventTime | None = None) -> OrcReader:
        """Reads the footers of the files, except those of empty files, and checks the listed columns.

        Raises:
            DataError: a file is damaged, lacks a column, or has a column of a type that cannot be read.
            ConfigError: a column has a type that its declared type cannot hold.
        """
        files = [file for path in paths if (file := _read_footer(path, table, event_time)) is not None]
        if not files:
            raise DataError(f"{paths[0]} is empty (0 bytes)", "deliver the file again")
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
            DataError: the file is damaged, or a value has no text that is certainly right.
        """
        file = next(one for one in self.files if one.path == file_split.path)
        is_time = self.event_time.column if self.event_time else None
        rows = _read(file, range(file_split.start, file_split.end or 0), self.table.columns)
        if not len(rows):
            return
        columns: dict[str, pa.Array] = {}
        malformed: dict[int, str] = {}
        exact_time = None
        time_zone = time_zone_of(self.table)
        for column in self.table.columns:
            is_wanted = column.name in wanted or column.name == is_time
            if column.source_name not in file.names:
                if is_wanted:
                    columns[column.name] = null_values(column, len(rows))
                continue
            values = rows.column(column.source_name)
            unit = None
            if column.name == is_time and column.type == "int" and self.event_time is not None:
                unit = self.event_time.unit
                exact_time = instants(values, "us") if pa.types.is_timestamp(values.type) else None
            try:
                if is_wanted:
                    converted = convert(values, column, unit, time_zone)
                    columns[column.name], bad = converted.values, converted.malformed
                else:
                    bad = malformed_rows(values, column, time_zone)
            except NoTextError as error:
                raise error.error(file.path, _rows_before(file, file_split.start)) from None
            for row in bad.tolist():
                malformed.setdefault(row, reason_of(column))
        yield RawBlock(
            bytes=int(rows.nbytes),
            lines=len(rows),
            row_lines=np.arange(len(rows), dtype=np.int64),
            columns=columns,
            counts={},
            broken={},
            malformed=malformed,
            texts=partial(_texts, rows),
            exact_time=exact_time,
        )


def _texts(rows: pa.Table, lines: Sequence[int]) -> list[str]:
    """Returns rows as JSON, by the indices of the rows."""
    taken = rows.take(pa.array(lines, pa.int64()))
    return row_texts(dict(zip(taken.column_names, taken.columns, strict=True)), len(taken))


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
    """Returns the footer of a file, after its listed columns have been checked; None if the file is empty."""
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
    names = [name for name in schema.names if schema.names.count(name) == 1]
    missing = [
        column.source_name
        for column in table.columns
        if column.source_name not in names and not column.optional
    ]
    if missing:
        raise missing_columns(path, missing, schema.names)
    stored = [column for column in table.columns if column.source_name in names]
    for column in stored:
        is_time = event_time is not None and column.name == event_time.column
        require_type(path, column, schema.field(column.source_name).type, is_time)
    return _File(path, size, stripes, frozenset(column.source_name for column in stored))


def _read(file: _File, stripes: Sequence[int], columns: Sequence[Column]) -> pa.Table:
    """Returns the rows of some stripes, with the stored columns among `columns`, in this order."""
    names = [column.source_name for column in columns if column.source_name in file.names]
    with _opened(file.path) as source:
        # ORC takes a dot in a name as access to a field of a struct. Then all columns are read.
        plain = None if any("." in name for name in names) else names
        parts = [source.read_stripe(stripe, columns=plain) for stripe in stripes]
        if not parts:
            return source.schema.empty_table()
        return pa.Table.from_batches(parts).select(names)


def _rows_before(file: _File, stripe: int) -> int:
    """Returns the number of rows of the stripes before this one. Only an error needs it."""
    with _opened(file.path) as source:
        return sum(len(source.read_stripe(index)) for index in range(stripe))
