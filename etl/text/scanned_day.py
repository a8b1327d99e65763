"""A day that a scan pass has read, before its results are published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from etl.raw.file_splits import FileSplit
from etl.raw.files import RawFiles
from etl.text.scan_pass import SplitSummary


@dataclass(frozen=True)
class ScannedDay:
    """One day that a scan pass has read.

    Attributes:
        raw: the raw files of the day.
        splits: maps the index of each of the day's tasks to its file split, in the order of the day's lines.
        summaries: maps the index of each task to the summary of its file split. Tasks of other days are
            included.
    """

    raw: RawFiles
    splits: Mapping[int, FileSplit]
    summaries: Mapping[int, SplitSummary]

    def split_summaries(self) -> Iterator[tuple[FileSplit, SplitSummary]]:
        """Returns the day's file splits with their summaries, in order."""
        return ((file_split, self.summaries[task]) for task, file_split in self.splits.items())

    def first_lines(self) -> list[tuple[int, str, int, int]]:
        """Returns (task, path, row_id, line) for each file split of the day.

        Here `task` is the index of the split's task, `path` is the raw file, `row_id` is that of the split's
        first line, and `line` is the index of this line in the file.
        """
        starts: list[tuple[int, str, int, int]] = []
        row_id, line_in_file, path = 0, 0, ""
        for task, file_split in self.splits.items():
            line_in_file, path = (0 if file_split.path != path else line_in_file), file_split.path
            starts.append((task, path, row_id, line_in_file))
            row_id += self.summaries[task].lines
            line_in_file += self.summaries[task].lines
        return starts
