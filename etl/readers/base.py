"""The interface of all readers of raw tables, and the blocks of rows that readers return.

`reader_of` finds the reader of a format.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pyarrow as pa

from conf.plugins import READER
from conf.raw_types import EventTime, RawTable
from etl.raw.file_splits import FileSplit


@dataclass(frozen=True)
class RawBlock:
    """Rows from a part of one raw file, with typed columns, before the rules of the log are applied.

    Attributes:
        bytes: size of the block in memory, which is about the size of its text.
        lines: number of lines (text) or rows (other formats) in the block, including rejected ones.
        row_lines: (n,) int64, ascending: for each row, the index of its line in the block, from 0.
        columns: maps each column of the table to n values: a dictionary array of int64, double or string, or
            an array of lists of int64 or string. Dictionaries have no null; a null value has a null index.
        counts: maps columns to an int64 array. Entry i of the array is the number of rows with the value i of
            the column's dictionary. Columns whose values were not counted are missing.
        broken: for each line that is not a row, maps its index to the reason, such as `field_count`.
        malformed: for each row with a value that does not fit its column, maps the index of the row to the
            reason, such as `integer:age`. The value itself is null.
        texts: takes the indices of lines, and returns the texts of these lines for the quarantine.
        exact_time: (n,) int64 µs since 1970-01-01 UTC if the time is stored as a timestamp, otherwise None.
            A timestamp may be more exact than the unit of the column.
    """

    bytes: int
    lines: int
    row_lines: np.ndarray
    columns: Mapping[str, pa.Array]
    counts: Mapping[str, np.ndarray]
    broken: Mapping[int, str]
    malformed: Mapping[int, str]
    texts: Callable[[Sequence[int]], list[str]]
    exact_time: pa.Array | None = field(default=None)


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def map_in_threads(
    items: Iterable[_Item], function: Callable[[_Item], _Result], threads: int
) -> Iterator[_Result]:
    """Yields the results of a function for some items, in the order of the items.

    Args:
        items: the arguments of the calls, such as the texts of blocks. The calling thread iterates over
            `items`; files are read and decompressed during the iteration.
        function: the function to call. It should spend most of its time in compiled code, which threads run
            in parallel.
        threads: number of threads, including the calling thread. At most this number of items is in memory at
            a time.
    """
    if threads <= 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads - 1) as pool:
        pending: deque[Future[_Result]] = deque()
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) >= threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


@dataclass(frozen=True)
class TableReader(ABC):
    """Reads the files of one raw table. The driver opens the reader, and tasks read blocks of file splits.

    Attributes:
        table: names and types of the columns.
        paths: the files, in the order of their rows.
    """

    table: RawTable
    paths: tuple[str, ...]

    @classmethod
    @abstractmethod
    def open(
        cls, table: RawTable, paths: tuple[str, ...], event_time: EventTime | None = None
    ) -> TableReader:
        """Reads the headers of the files, and checks them.

        Args:
            table: names and types of the columns.
            paths: the files, in the order of their rows.
            event_time: the section `log.event_time`; None for a table without times.

        Raises:
            DataError, ConfigError: the files lack a column, or cannot be read.
        """

    @abstractmethod
    def splits(self, split_bytes: int | None = None) -> list[FileSplit]:
        """Returns the parts of the files that tasks read, in the order of the rows.

        The reader decides what `start` and `end` of a split count, such as bytes of text or row groups.

        Args:
            split_bytes: approximate number of bytes of a split; None for the reader's default.
        """

    @abstractmethod
    def blocks(self, file_split: FileSplit, wanted: Collection[str]) -> Iterator[RawBlock]:
        """Yields the rows of a file split, block by block, in the order of the rows.

        Args:
            file_split: one of the results of `splits`.
            wanted: the columns to return. Other columns may be missing in the result. Their values are still
                checked if they may not fit the declared type.

        Raises:
            DataError: the file is damaged.
        """


# The functions below find the reader of a format, and open the files of a table with it.


def open_table(table: RawTable, paths: tuple[str, ...], event_time: EventTime | None = None) -> TableReader:
    """Opens the files of a table with the reader of its format.

    Raises:
        DataError, ConfigError: see TableReader.open.
        ConfigError: the module of a package does not contain a reader (`reader_of`).
    """
    return reader_of(table.format).open(table, paths, event_time)


def reader_of(name: str) -> type[TableReader]:
    """Returns the class that reads a format. The format must exist.

    Raises:
        ConfigError: the module of a package has no class `Reader` and no function `reader`.
    """
    plugin = READER.get(name)
    if hasattr(plugin.load(), "reader"):
        of_function: type[TableReader] = plugin.member("reader")()
        return of_function
    of_class: type[TableReader] = plugin.member("Reader", TableReader)
    return of_class
