"""Decides which table rows are in the memory of a device, and which in host memory: a pure function.

The rows of a feature are in the order of their ids, and ids are ordered by frequency. So the first rows of
each feature are hot: they are on the device of the rank that holds them. For a number of bytes on each rank,
rows are chosen in descending order of lookups per byte, so that as many lookups as possible are hot (the
greedy rule for the fractional knapsack problem, Dantzig 1957, Operations Research 5).

Ids that a later fit appended may be more frequent than earlier ids. Such a row can only be hot together with
all earlier rows of its feature. So neighbouring rows are joined until the lookups per row decrease (the rule
of pool-adjacent-violators, Barlow et al. 1972).

Notation: C features of a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from training.embeddings.placed_rows import FeaturePlacement, Placement

# A feature's first rows are considered one by one, the other rows in so many runs of equal length.
_SINGLE_ROWS = 2**13
_RUNS = 2**13

IdCounts = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True)
class PlannedTable:
    """A table before its rows are created.

    Attributes:
        placement: which rank holds which rows.
        row_bytes: bytes of a row, for its numbers and its optimizer state.
        lookups: for each feature, the largest number of its rows that one row of a batch looks up.
        names: (C,), the names of the features.
    """

    placement: Placement
    row_bytes: int
    lookups: tuple[int, ...]
    names: tuple[str, ...]

    def bytes_of(self, rank: int) -> int:
        """Returns the bytes of all rows that a rank holds."""
        return self.placement.rows_of(rank) * self.row_bytes


@dataclass(frozen=True)
class Tiers:
    """Which rows of a model's tables are hot.

    Attributes:
        hot: for each table, in the order in which the model creates tables, the number of hot rows of each
            feature.
        pinned: whether host memory of rows is pinned, which kernels on a GPU need.
        expected: the share of the lookups of tables with a tail that read hot rows, by the counts.
    """

    hot: tuple[tuple[int, ...], ...]
    pinned: bool
    expected: float


@dataclass(frozen=True)
class _Run:
    """Rows `start` to `end` of a feature, with the lookups per byte that they save a rank's memory for."""

    density: float
    table: int
    feature: int
    start: int
    end: int


def choose_tiers(
    tables: Sequence[PlannedTable], counts: IdCounts, rank_bytes: int, *, pinned: bool
) -> Tiers | None:
    """Returns which rows are hot; None if all rows fit.

    Args:
        tables: the tables of a model.
        counts: how often each id of a feature occurs, by the name of the feature. Ids without a count never
            occur, such as reserved ids. The ids of a feature that is not in `counts` are equally frequent.
        rank_bytes: bytes of rows that a rank may hold on its device.
        pinned: see `Tiers`.
    """
    if not tables:
        return None
    ranks = tables[0].placement.ranks
    if all(sum(table.bytes_of(rank) for table in tables) <= rank_bytes for rank in range(ranks)):
        return None
    lookups = [lookups_of(table, counts) for table in tables]
    runs = [
        _Run(density / (tables[number].row_bytes * _copies(placement, ranks)), number, feature, start, end)
        for number, table in enumerate(tables)
        for feature, placement in enumerate(table.placement.features)
        for start, end, density in runs_of(lookups[number][feature])
    ]
    runs.sort(key=lambda run: (-run.density, run.table, run.feature, run.start))
    hot = [[0] * len(table.placement.features) for table in tables]
    left = [rank_bytes] * ranks
    closed: set[tuple[int, int]] = set()
    for run in runs:
        if (run.table, run.feature) in closed:
            continue
        table = tables[run.table]
        placement = table.placement.features[run.feature]
        rows = _fitting(placement, run, [bytes_left // table.row_bytes for bytes_left in left])
        for rank in range(ranks):
            taken = _rows_on(placement, rank, ranks, run.start, run.start + rows)
            left[rank] -= taken * table.row_bytes
        hot[run.table][run.feature] = run.start + rows
        if run.start + rows < run.end:
            closed.add((run.table, run.feature))
    return Tiers(tuple(map(tuple, hot)), pinned, _hot_share(tables, lookups, hot))


def _hot_share(
    tables: Sequence[PlannedTable], lookups: Sequence[Sequence[NDArray[np.float64]]], hot: list[list[int]]
) -> float:
    """Returns the share of the lookups of tables with a tail that read hot rows."""
    hot_lookups = all_lookups = 0.0
    for table, of_table, firsts in zip(tables, lookups, hot, strict=True):
        if tuple(firsts) == table.placement.cardinalities:
            continue
        for of_feature, first in zip(of_table, firsts, strict=True):
            hot_lookups += float(of_feature[:first].sum())
            all_lookups += float(of_feature.sum())
    return hot_lookups / all_lookups if all_lookups else 0.0


def lookups_of(table: PlannedTable, counts: IdCounts) -> list[NDArray[np.float64]]:
    """Returns, for each feature, how often each of its rows is looked up in the days of `counts`."""
    known = [counts[name] for name in table.names if name in counts]
    rows_of_log = max((int(of_feature.sum()) for of_feature in known), default=1)
    lookups = []
    for name, cardinality, width in zip(
        table.names, table.placement.cardinalities, table.lookups, strict=True
    ):
        of_feature = np.full(cardinality, rows_of_log * width / max(cardinality, 1))
        if name in counts:
            of_feature[:] = 0
            of_ids = counts[name][:cardinality]
            of_feature[: len(of_ids)] = of_ids
        lookups.append(of_feature)
    return lookups


def runs_of(lookups: NDArray[np.float64]) -> Iterator[tuple[int, int, float]]:
    """Yields runs (start, end, lookups per row) of a feature's rows, in order. Lookups per row decrease.

    `lookups` (rows,) is how often each row is looked up.
    """
    rows = len(lookups)
    single = min(rows, _SINGLE_ROWS)
    later = np.unique(np.linspace(single, rows, _RUNS + 1).astype(np.int64)) if rows > single else np.zeros(0)
    bounds = np.concatenate([np.arange(single), later]).astype(np.int64)
    bounds = bounds if len(later) else np.append(bounds, rows)
    sums = np.concatenate([np.zeros(1), lookups.cumsum()])[bounds]
    starts: list[int] = []
    ends: list[int] = []
    totals: list[float] = []
    for start, end, total in zip(
        bounds[:-1].tolist(), bounds[1:].tolist(), np.diff(sums).tolist(), strict=True
    ):
        starts.append(start)
        ends.append(end)
        totals.append(total)
        while len(starts) > 1 and totals[-1] * (ends[-2] - starts[-2]) >= totals[-2] * (
            ends[-1] - starts[-1]
        ):
            starts.pop()
            ends[-2:] = [ends[-1]]
            totals[-2:] = [totals[-2] + totals[-1]]
    for start, end, total in zip(starts, ends, totals, strict=True):
        yield start, end, total / (end - start)


def _copies(placement: FeaturePlacement, ranks: int) -> float:
    """Returns on how many ranks a row takes memory, divided by the number of ranks."""
    if placement.kind == "replicated":
        return 1.0
    if placement.kind == "table_wise" or placement.kind == "row_wise":
        return 1 / ranks
    assert_never(placement.kind)


def _rows_on(placement: FeaturePlacement, rank: int, ranks: int, start: int, end: int) -> int:
    """Returns how many of the rows `start` to `end` of a feature a rank holds."""
    if placement.kind == "row_wise":
        first = start + (rank - placement.rank - start) % ranks
        return max(-(-(end - first) // ranks), 0)
    if placement.kind == "replicated":
        return end - start
    if placement.kind == "table_wise":
        return end - start if placement.rank == rank else 0
    assert_never(placement.kind)


def _fitting(placement: FeaturePlacement, run: _Run, rows_left: Sequence[int]) -> int:
    """Returns how many of the first rows of a run fit, if each rank has room for so many rows."""
    if placement.kind == "replicated":
        return min(run.end - run.start, *rows_left)
    if placement.kind == "table_wise":
        return min(run.end - run.start, rows_left[placement.rank])
    if placement.kind == "row_wise":
        ranks = len(rows_left)
        # The rank's next row after those that fit is the first row that does not fit.
        ends = [
            (rank - placement.rank - run.start) % ranks + rows * ranks for rank, rows in enumerate(rows_left)
        ]
        return min(run.end - run.start, *ends)
    assert_never(placement.kind)


def describe_tiers(tables: Sequence[PlannedTable], tiers: Tiers) -> str:
    """Returns the tiers as a table for the log: one line per feature of each table."""
    width = max([len("feature"), *(len(name) for table in tables for name in table.names)])
    lines = [f"{'feature':<{width}}  {'rows':>11}  {'hot rows':>11}  {'bytes a row':>11}"]
    for table, hot in zip(tables, tiers.hot, strict=True):
        for name, rows, first in zip(table.names, table.placement.cardinalities, hot, strict=True):
            lines.append(f"{name:<{width}}  {rows:>11}  {first:>11}  {table.row_bytes:>11}")
    return "\n".join(lines)
