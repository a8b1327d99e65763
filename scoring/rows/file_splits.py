"""Decides which rows each task of score_rows reads: complete row groups of a split, or parts of row groups.

The driver sends only paths and row ranges to the workers, not rows. Manifests contain the number of rows of
each row group, so the driver divides the rows without reading a data file. Each task decodes the complete row
group, even if another task shares it. So row groups are divided only if the slots would otherwise get very
unequal numbers of rows. A slot runs one task after another, and all slots run at the same time.
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

# Tasks get complete row groups if no slot then has more rows than the mean of all slots, plus this share of
# the mean. Scoring a row on a CPU takes longer than decoding it, so a larger imbalance costs more than
# decoding row groups twice.
_MORE_ROWS = 1 / 8


@dataclass(frozen=True)
class FileRowGroup:
    """One row group of a Parquet file, as the manifest describes it.

    Attributes:
        path: path or URI of the Parquet file.
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
    """Returns the row groups of a split, ordered by date, then in the order of the manifests.

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


def divide_rows(
    groups: Sequence[FileRowGroup], slots: int, max_rows: int, *, whole: bool = False
) -> list[tuple[RowGroupRange, ...]]:
    """Divides all rows among tasks, in the order of the rows.

    Returns the pieces of each task. A piece is a range of rows of one row group. Every row is in exactly one
    piece. If there are no rows, the result is one task without pieces.

    Tasks get complete row groups if `whole` is set, or if the slots then have about equal numbers of rows.
    Otherwise the tasks have about equal numbers of rows, and some tasks share a row group. A task has at most
    `max_rows` rows, or up to an eighth more if it then ends at the end of a row group. With `whole`, a row
    group with more rows becomes a separate task.

    Args:
        groups: the row groups, in the order of their rows.
        slots: number of tasks that run at the same time. The number of tasks is about a multiple of `slots`,
            so that all slots end at about the same time. If there are fewer rows, there are fewer tasks. With
            `whole`, there are at most as many tasks as row groups.
        max_rows: maximum number of rows of a task.
        whole: whether row groups are never divided.
    """
    ends = list(accumulate(group.rows for group in groups))
    total = ends[-1] if ends else 0
    rounds = max(-(-total // (max_rows * slots)), 1)
    tasks = min(slots * rounds, max(total, 1))
    even = [total * task // tasks for task in range(tasks + 1)]
    near = [0, *(_nearest(cut, ends) for cut in even[1:-1]), total]
    full = _full(ends, max_rows)
    if whole:
        cuts = near if _largest(near) <= (1 + _MORE_ROWS) * max_rows else full
    else:
        limits = ((1 + _MORE_ROWS) * max_rows, (1 + _MORE_ROWS) * total / slots)
        fitting = [
            chosen
            for chosen in (near, full)
            if _largest(chosen) <= limits[0] and _longest_slot(chosen, slots) <= limits[1]
        ]
        cuts = fitting[0] if fitting else [_moved(cut, ends, total / tasks) for cut in even]
    return [_between(groups, ends, *pair) for pair in pairwise(sorted(set(cuts)))] or [()]


def _full(ends: Sequence[int], max_rows: int) -> list[int]:
    """Returns the ends of tasks that get as many complete row groups as `max_rows` allows, as row indices."""
    cuts = [0]
    for before, end in pairwise([0, *ends]):
        if end - cuts[-1] > max_rows and before > cuts[-1]:
            cuts.append(before)
    return [*cuts, *ends[-1:]]


def _largest(cuts: Sequence[int]) -> int:
    return max((last - first for first, last in pairwise(cuts)), default=0)


def _longest_slot(cuts: Sequence[int], slots: int) -> int:
    """Returns an upper bound for the number of rows that one slot scores.

    A slot takes a new task when its task ends.
    """
    tasks = len({*cuts}) - 1
    return -(-tasks // slots) * _largest(cuts)


def _nearest(cut: int, ends: Sequence[int]) -> int:
    """Returns the element of `ends`, the ends of the row groups, that is nearest to the row index `cut`."""
    at = bisect_left(ends, cut)
    return min(ends[max(at - 1, 0) : at + 1], key=lambda end: abs(end - cut))


def _moved(cut: int, ends: Sequence[int], task_rows: float) -> int:
    """Moves the end of a task to the nearest end of a row group, if this end is near.

    Args:
        cut: the end of the task, as a row index over all row groups.
        ends: the end of each row group, as a row index over all row groups.
        task_rows: mean number of rows of a task.
    """
    if not cut:
        return cut
    nearest = _nearest(cut, ends)
    return nearest if abs(nearest - cut) <= task_rows * _MORE_ROWS / 2 else cut


def _between(
    groups: Sequence[FileRowGroup], ends: Sequence[int], first: int, last: int
) -> tuple[RowGroupRange, ...]:
    """Returns the pieces that contain the rows [first, last) of the concatenated row groups.

    A piece is a range of rows of one row group.
    """
    pieces = []
    at = bisect_left(ends, first + 1)
    while at < len(groups) and ends[at] - groups[at].rows < last:
        begin = ends[at] - groups[at].rows
        pieces.append(RowGroupRange(groups[at], max(first - begin, 0), min(last - begin, groups[at].rows)))
        at += 1
    return tuple(pieces)
