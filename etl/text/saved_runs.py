"""Groups the saved blocks of a file split into runs that tasks encode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from conf.types import Split
from etl.raw.file_splits import FILE_SPLIT_BYTES
from etl.text.scan_pass import CountedBlock


@dataclass(frozen=True)
class SavedRun:
    """Consecutive lines of a file split that one task encodes.

    Attributes:
        first, end: the first line, and the line after the last one.
        names: the names of the saved blocks with these lines; none if a block was not saved.
    """

    first: int
    end: int
    names: tuple[str, ...] = ()

    def within(self, parts: Sequence[tuple[Split, int, int]]) -> Iterator[tuple[Split, int, int]]:
        """Yields the lines of each part that are in this run, if there are any: split, first line and end."""
        for split, first, end in parts:
            if max(first, self.first) < min(end, self.end):
                yield split, max(first, self.first), min(end, self.end)


def saved_runs(blocks: Sequence[CountedBlock], lines: int, divided: bool) -> list[SavedRun]:
    """Returns the runs of a file split of some lines, in order.

    Args:
        blocks: the blocks of the split; none if this process has not scanned the split.
        lines: number of lines of the split.
        divided: whether every worker can read every saved block. If not, or if a block was not saved, the
            split is one run.

    A run has as many rows as the encode pass writes at once, so its row groups are the same for one run and
    for several.
    """
    if not blocks or not all(block.saved for block in blocks):
        return [SavedRun(0, lines)]
    if not divided:
        return [SavedRun(0, lines, tuple(block.saved for block in blocks))]
    runs: list[SavedRun] = []
    first, end, size = 0, 0, 0
    names: list[str] = []
    for index, block in enumerate(blocks):
        end += block.lines
        size += block.bytes
        names.append(block.saved)
        # A block of a compressed file is smaller than FILE_SPLIT_BYTES by a part of a line.
        if size + block.bytes // 2 >= FILE_SPLIT_BYTES or index == len(blocks) - 1:
            runs.append(SavedRun(first, end, tuple(names)))
            first, size, names = end, 0, []
    return runs
