"""What all readers of raw tables share: the interface of a reader, and the blocks of rows that it gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pyarrow as pa

from conf.raw_types import EventTime, RawTable
from etl.raw.file_splits import FileSplit


@dataclass(frozen=True)
class RawBlock:
    """The rows of a part of one raw file, with typed columns, before the rules of the log are applied.

    Attributes:
        bytes: size of the block in memory, about that of its text.
        lines: number of lines (text) or rows (other formats) in the block, with those that are rejected.
        row_lines: (n,) int64, ascending: for each row, the index of its line in the block, from 0.
        columns: maps each column of the table to n values: a dictionary array of int64, double or string, or
            an array of lists of int64 or string. Dictionaries have no null; a null value has a null index.
        counts: maps columns to an int64 array. Entry i of the array is the number of rows with the value i of
            the column's dictionary. Columns whose values were not counted are missing.
        broken: maps the index of each line that is no row to the reason, such as `field_count`.
        malformed: maps the index of each row with a value that does not fit to the reason, such as
            `integer:age`. The value itself is null.
        texts: returns the texts of the lines with these indices, for the quarantine.
        exact_time: (n,) int64 µs since 1970-01-01 UTC, if the column of the time is stored as a timestamp,
            which may be more exact than the unit of the column; else None.
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


_Text = TypeVar("_Text")


def parse_in_threads(
    texts: Iterator[_Text], parse: Callable[[_Text], RawBlock], threads: int
) -> Iterator[RawBlock]:
    """Yields the parsed blocks of some texts, in order.

    Args:
        texts: the texts of blocks. This thread reads them, which includes to decompress them.
        parse: parses one text. Most of its time is spent in compiled code, which threads run in parallel.
        threads: number of threads, with this one. It is also how many texts are in memory at a time.
    """
    if threads <= 1:
        yield from map(parse, texts)
        return
    with ThreadPoolExecutor(threads - 1) as pool:
        pending: deque[Future[RawBlock]] = deque()
        for text in texts:
            pending.append(pool.submit(parse, text))
            if len(pending) >= threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


@dataclass(frozen=True)
class TableReader(ABC):
    """Reads the files of one raw table. The driver opens it, and tasks read the blocks of file splits.

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

        What `start` and `end` of a split count is up to the reader: bytes of text, or row groups.

        Args:
            split_bytes: about how many bytes a split has; None for the reader's default.
        """

    @abstractmethod
    def blocks(self, file_split: FileSplit, wanted: Collection[str]) -> Iterator[RawBlock]:
        """Yields the rows of a file split, block by block, in order.

        Args:
            file_split: one of the results of `splits`.
            wanted: the columns to return. The values of other columns are checked all the same if their type
                can be violated, and may be missing in the result.

        Raises:
            DataError: the file is damaged.
        """
