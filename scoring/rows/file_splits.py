"""Decides which rows each task of score_rows reads: complete row groups of a split, or parts of row groups.

The driver sends only paths and row ranges to the workers, not rows. Manifests contain the number of rows of
each row group, so the driver divides the rows without reading a data file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from conf.errors import DataError
from conf.types import Split
from storage.dataset import Dataset, split_partitions
from storage.paths import LakePaths

# If the end of a row group is near the end of a task, the task ends there instead, because two tasks that
# share a row group both decode it. "Near" is half of this share of a task's rows.
_MOVED_SHARE = 1 / 8


@dataclass(frozen=True)
class FileRowGroup:
    """One row group of a Parquet file, as the manifest describes it.

    Attributes:
        path: path of the file.
        index: index of the row group in its file.
        count: number of row groups in this file.
        rows: number of rows in the row group.
        dt: the date of the partition that contains the file.
    """

    path: str
    index: int
    count: int
    rows: int
    dt: str


@dataclass(frozen=True)
class RowGroupRange:
    """A range of rows of one row group: the rows with the indices [start, stop)."""

    group: FileRowGroup
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Returns the number of rows."""
        return self.stop - self.start


def row_groups(lake: LakePaths, dataset: Dataset, split: Split) -> list[FileRowGroup]:
    """Returns the row groups of a split, ordered by date and then as the manifests name them.

    Empty row groups are left out.

    Raises:
        DataError: a partition is missing or was replaced after the dataset was published, or the dataset has
            no partition for this split.
    """
    partitions = split_partitions(lake, dataset, split)
    if not partitions:
        raise DataError(
            f"the dataset of {dataset.run_date} has no partition for the split {split}, "
            f"only for {sorted(dataset.splits)}",
            "run build_features for that date, or name another split in score.rows_split",
        )
    return [
        FileRowGroup(partition.file(entry.path), index, len(entry.row_groups), rows, partition.dt)
        for partition, manifest, label in partitions
        for entry in manifest.split_files(label)
        for index, rows in enumerate(entry.row_groups)
        if rows
    ]


def divide_rows(groups: Sequence[FileRowGroup], slots: int, max_rows: int) -> list[tuple[RowGroupRange, ...]]:
    """Divides all rows, in order, among tasks with about equal numbers of rows.

    Returns the pieces of each task. A piece is a range of rows of one row group. Every row is in exactly one
    piece. A task has at most `max_rows` rows. It may have up to an eighth more if its end was moved to the
    end of a row group. If there are no rows, the result is one task without pieces.

    Args:
        groups: the row groups, in order.
        slots: minimum number of tasks. If there are fewer rows, there are fewer tasks.
        max_rows: maximum number of rows of a task.
    """
    ends = list(accumulate(group.rows for group in groups))
    total = ends[-1] if ends else 0
    tasks = min(max(slots, -(-total // max_rows)), max(total, 1))
    cuts = sorted(
        {0, total, *(_moved(total * task // tasks, ends, total / tasks) for task in range(1, tasks))}
    )
    return [_between(groups, ends, *pair) for pair in pairwise(cuts)] or [()]


def _moved(cut: int, ends: Sequence[int], task_rows: float) -> int:
    """Moves the end of a task to the nearest end of a row group, if this end is near (_MOVED_SHARE).

    Args:
        cut: the end of the task, as a row index over all row groups.
        ends: the end of each row group, as a row index over all row groups.
        task_rows: mean number of rows of a task.
    """
    at = bisect_left(ends, cut)
    nearest = min(ends[max(at - 1, 0) : at + 1], key=lambda end: abs(end - cut))
    return nearest if abs(nearest - cut) <= task_rows * _MOVED_SHARE / 2 else cut


def _between(
    groups: Sequence[FileRowGroup], ends: Sequence[int], first: int, last: int
) -> tuple[RowGroupRange, ...]:
    """Returns the pieces that contain the rows [first, last). Row indices count over all row groups.

    A piece is a range of rows of one row group.
    """
    pieces = []
    at = bisect_left(ends, first + 1)
    while at < len(groups) and ends[at] - groups[at].rows < last:
        begin = ends[at] - groups[at].rows
        pieces.append(RowGroupRange(groups[at], max(first - begin, 0), min(last - begin, groups[at].rows)))
        at += 1
    return tuple(pieces)
