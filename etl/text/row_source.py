"""Where the passes get blocks of rows from: the files of a raw log, or prepared files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from etl.raw.file_splits import FileSplit
from etl.text.file_layout import FileLayout
from etl.text.parse_block import ParsedBlock, read_split


class RowSource(Protocol):
    """Gives the blocks of a file split. Tasks get it pickled."""

    def blocks(self, file_split: FileSplit, features: Sequence[str]) -> Iterator[ParsedBlock]:
        """Yields the rows of a file split, block by block, in order.

        Args:
            file_split: the part of a file to read.
            features: raw columns that features read. Columns of label, keys and time are read in any case.
        """


@dataclass(frozen=True)
class LogRows:
    """The rows of a raw log, to which the rules of the log are applied."""

    layout: FileLayout

    def blocks(self, file_split: FileSplit, features: Sequence[str]) -> Iterator[ParsedBlock]:
        """Yields the rows of a file split."""
        return read_split(file_split, self.layout, columns_to_parse(self.layout, features))


def columns_to_parse(layout: FileLayout, features: Sequence[str]) -> tuple[str, ...]:
    """Returns the raw columns to parse: `features`, and the columns of label, keys, time and filters."""
    names = {*features, layout.label.column}
    if layout.keys:
        names |= set(layout.keys.columns)
    if layout.event_time:
        names.add(layout.event_time.column)
    for row_filter in layout.filters:
        names |= {*row_filter.inputs(layout.types)}
    return tuple(column.name for column in layout.columns if column.name in names)
