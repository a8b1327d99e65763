"""Reads Delta tables: the Parquet files of the current version, with their partition columns.

If a column was added to the table after a file was written, the column is null in the rows of this file. Rows
that a deletion vector deletes are left out. They count as lines, but neither as rows nor as rejected rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from conf.errors import DataError
from conf.raw_types import Column, EventTime, RawTable
from etl.raw.file_columns import missing_columns
from etl.raw.file_splits import FileSplit
from etl.raw.files import DeltaVersion, kept_rows, version_of
from etl.readers.arrow_blocks import row_texts
from etl.readers.arrow_values import convert, instants, reason_of, require_type, time_zone_of
from etl.readers.base import RawBlock, TableReader
from etl.readers.parquet import ParquetReader


@dataclass(frozen=True)
class DeltaReader(TableReader):
    """Reads `delta`.

    Attributes:
        parquet: the reader of the columns that are stored in the Parquet files.
        values: maps each partition column of the table to an array with its value in each file, in the order
            of `paths`.
        kept: maps files with deletion vectors to (n,) bool: whether each of their first n rows is kept. All
            later rows are kept.
        event_time: the section `log.event_time`; None for a table without times.
    """

    parquet: ParquetReader
    values: Mapping[str, pa.Array]
    kept: Mapping[str, np.ndarray]
    event_time: EventTime | None

    @classmethod
    def open(
        cls, table: RawTable, paths: tuple[str, ...], event_time: EventTime | None = None
    ) -> DeltaReader:
        """Reads the log of the table and the footers of the files, and checks the listed columns.

        Raises:
            DataError: a file is no longer part of the table or is damaged, the table lacks a column, or a
                column has a type that cannot be read.
            ConfigError: a column has a type that its declared type cannot hold.
        """
        version = version_of(paths[0])
        missing = [
            column.source_name
            for column in table.columns
            if column.source_name not in version.columns and not column.optional
        ]
        if missing:
            raise missing_columns(version.root, missing, list(version.columns))
        partitions = {
            column.name: column
            for column in table.columns
            if column.source_name in version.partitions.column_names
        }
        values = _values_of(version, paths, partitions)
        for name, column in partitions.items():
            is_time = event_time is not None and event_time.column == name
            require_type(version.root, column, values[name].type, is_time)
        stored = [
            column.model_copy(update={"optional": True})
            for column in table.columns
            if column.name not in partitions
        ]
        in_files = event_time if event_time is None or event_time.column not in partitions else None
        parquet = ParquetReader.open(_with_columns(table, stored), paths, in_files)
        kept = {path: np.asarray(mask, bool) for path, mask in kept_rows(version, {*paths}).items()}
        return cls(table, paths, parquet, values, kept, event_time)

    def splits(self, split_bytes: int | None = None) -> list[FileSplit]:
        """Returns ranges of row groups of the files."""
        return self.parquet.splits(split_bytes)

    def blocks(self, file_split: FileSplit, wanted: Collection[str]) -> Iterator[RawBlock]:
        """Yields the rows of a file split, with the values of the file's partition.

        Raises:
            DataError: the file is damaged, or a value in a string column cannot be written exactly as text.
        """
        in_files = [name for name in wanted if name not in self.values]
        first = self._rows_before(file_split)
        for block in self.parquet.blocks(file_split, in_files):
            whole = self._with_partitions(block, file_split.path)
            yield _without_deleted(whole, self.kept.get(file_split.path), first)
            first += block.lines

    def _rows_before(self, file_split: FileSplit) -> int:
        file = next(one for one in self.parquet.files if one.path == file_split.path)
        return sum(file.group_rows[: file_split.start])

    def _with_partitions(self, block: RawBlock, path: str) -> RawBlock:
        """Adds the partition columns to a block. Their values are the same in all rows of a file."""
        if not self.values:
            return block
        at, rows = self.paths.index(path), len(block.row_lines)
        columns, malformed, exact_time = dict(block.columns), dict(block.malformed), block.exact_time
        event_time = self.event_time
        shown = {}
        for column in self.table.columns:
            if column.name not in self.values:
                continue
            value = self.values[column.name].slice(at, 1)
            shown[column.source_name] = value
            unit = None
            if event_time is not None and event_time.column == column.name and column.type == "int":
                unit = event_time.unit
                if pa.types.is_timestamp(value.type):
                    times = instants(value, "us", time_zone_of(self.table))
                    exact_time = times.take(pa.array(np.zeros(rows, np.int64)))
            converted = convert(value, column, unit, time_zone_of(self.table))
            columns[column.name] = converted.values.take(pa.array(np.zeros(rows, np.int32)))
            if len(converted.malformed):
                malformed |= {row: malformed.get(row, reason_of(column)) for row in range(rows)}
        texts = partial(_texts, block, shown)
        return replace(block, columns=columns, malformed=malformed, texts=texts, exact_time=exact_time)


def _values_of(
    version: DeltaVersion, paths: Sequence[str], partitions: Mapping[str, Column]
) -> dict[str, pa.Array]:
    """Returns the values of partition columns in each file.

    Raises:
        DataError: a file is not part of the version.
    """
    rows = {file.path: file.row for file in version.files}
    gone = [path for path in paths if path not in rows]
    if gone:
        raise DataError(
            f"{gone[0]} is not part of version {version.number} of the Delta table {version.root}, which was "
            "changed after the job had listed its files",
            "run the job again when the table is not being rewritten",
        )
    places = pa.array([rows[path] for path in paths], pa.int64())
    return {
        name: version.partitions[column.source_name].take(places).combine_chunks()
        for name, column in partitions.items()
    }


def _with_columns(table: RawTable, columns: Sequence[Column]) -> RawTable:
    """Returns the settings of a table of Parquet files with the columns `columns`."""
    return table.model_copy(update={"format": "parquet", "columns": list(columns)})


def _without_deleted(block: RawBlock, kept: np.ndarray | None, first: int) -> RawBlock:
    """Returns a block without the rows that a deletion vector deletes.

    Args:
        block: rows of one Parquet file, including deleted rows.
        kept: (n,) bool: whether each of the file's first n rows is kept; None if all rows are kept.
        first: the first row of the block, as an index into the rows of the file.
    """
    if kept is None:
        return block
    mask = np.ones(block.lines, bool)
    known = kept[first : first + block.lines]
    mask[: len(known)] = known
    rows = np.flatnonzero(mask[block.row_lines])
    if len(rows) == len(block.row_lines):
        return block
    new_index = {int(row): index for index, row in enumerate(rows)}
    taken = pa.array(rows)
    return replace(
        block,
        row_lines=block.row_lines[rows],
        columns={name: values.take(taken) for name, values in block.columns.items()},
        counts={},  # the reader of Parquet files has also counted the values of deleted rows
        malformed={new_index[row]: why for row, why in block.malformed.items() if row in new_index},
        exact_time=None if block.exact_time is None else block.exact_time.take(taken),
    )


def _texts(block: RawBlock, partitions: Mapping[str, pa.Array], lines: Sequence[int]) -> list[str]:
    """Returns the rows with the indices `lines` as JSON. The partition columns are at the end."""
    (of_partition,) = row_texts(partitions, 1)
    texts = block.texts(lines)
    if of_partition == "{}":
        return texts
    return [f"{text[:-1]}{',' if text != '{}' else ''}{of_partition[1:]}" for text in texts]
