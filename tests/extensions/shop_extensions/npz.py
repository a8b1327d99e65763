"""Reads archives of NumPy (`npz`): each array of an archive is a column. A file split is a whole file."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from nightrank.extending import (
    DataError,
    EventTime,
    FileSplit,
    RawBlock,
    RawTable,
    TableReader,
    check_schema,
    filesystem,
    typed_block,
)


@dataclass(frozen=True)
class Reader(TableReader):
    """Reads `npz`."""

    event_time: EventTime | None

    @classmethod
    def open(cls, table: RawTable, paths: tuple[str, ...], event_time: EventTime | None = None) -> Reader:
        """Checks the arrays of each file."""
        for path in paths:
            check_schema(path, _read(path).schema, table, event_time)
        return cls(table, paths, event_time)

    def splits(self, split_bytes: int | None = None) -> list[FileSplit]:
        """Returns one split for each file."""
        return [FileSplit(path, 0, None, _read(path).nbytes) for path in self.paths]

    def blocks(self, file_split: FileSplit, wanted: Collection[str]) -> Iterator[RawBlock]:
        """Yields the rows of a file as one block."""
        rows = _read(file_split.path)
        listed = [column.source_name for column in self.table.columns]
        rows = rows.select([name for name in rows.column_names if name in listed])
        if len(rows):
            yield typed_block(rows, self.table, self.event_time, wanted, file_split.path, lambda: 0)


def _read(path: str) -> pa.Table:
    files, inner = filesystem(path)
    with files.open_input_file(inner) as source:
        try:
            return pa.table({name: pa.array(values) for name, values in np.load(source).items()})
        except (ValueError, OSError, pa.ArrowException) as error:
            raise DataError(f"{path} is not an archive of NumPy: {error}", "deliver it again") from error
