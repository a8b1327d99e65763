"""The placement of table rows: which rank holds which rows, and whether in device memory or host memory.

The router maps ids to the ranks that hold their rows.

Replicated rows take memory on all ranks, and their gradients need an all-gather. Rows that are on only one
rank need an exchange of vectors, and the rank with frequent rows has the most work. The placement `auto`
therefore follows these rules:

* Small features (at most `replicated_max_bytes`) are replicated if the memory limit of a rank,
  `rank_max_bytes`, is large enough.
* The rows of a row-wise feature are spread over all ranks. A feature is row-wise if its bytes are more than
  `row_wise_share` times the mean number of bytes per rank. While a rank holds more than its memory limit, the
  largest of the other features becomes row-wise too.
* Each other feature is placed on one rank. The features are assigned in descending order of cost, each to the
  rank with the lowest cost so far. The cost of a feature is its share of all bytes plus its share of all
  lookups. With this rule (LPT, Graham 1969, SIAM Journal on Applied Mathematics 17), the cost of a rank is at
  most the mean cost plus the highest cost of a feature.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Literal, assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from conf.errors import ConfigError
from conf.train_types import Embeddings
from training.embeddings.rows import Groups, RowBlock, group_and_count


@dataclass(frozen=True)
class TableShape:
    """The sizes of a table that determine its placement.

    Attributes:
        cardinalities: number of rows of each feature.
        row_bytes: bytes of memory that a row takes, for its numbers and its optimizer state.
        lookups: for each feature, the largest number of its rows that one row of a batch looks up.
    """

    cardinalities: tuple[int, ...]
    row_bytes: int
    lookups: tuple[int, ...]

    @property
    def feature_bytes(self) -> list[int]:
        """Returns the size of each feature's rows in bytes."""
        return [rows * self.row_bytes for rows in self.cardinalities]


def plan_placement(shape: TableShape, ranks: int, settings: Embeddings) -> Placement:
    """Returns the placement of all features. With a single rank, this rank holds all rows, for any settings.

    Raises:
        ConfigError: a rank would hold more bytes of the table than `rank_max_bytes`.
    """
    placement = _place(shape, ranks, settings)
    max_bytes = settings.rank_max_bytes
    largest_bytes = max(placement.rows_of(rank) for rank in range(ranks)) * shape.row_bytes
    if max_bytes is not None and largest_bytes > max_bytes:
        raise ConfigError(
            f"a rank would hold {largest_bytes} bytes of an embedding table "
            f"(train.embeddings.placement={settings.placement}, {ranks} ranks, "
            f"{sum(shape.cardinalities)} rows of {shape.row_bytes} bytes), which is more than "
            f"train.embeddings.rank_max_bytes={max_bytes}",
            "raise train.num_ranks, set train.embeddings.placement to auto or row_wise, or set "
            "model.embedding_storage to bf16",
        )
    return placement


def _place(shape: TableShape, ranks: int, settings: Embeddings) -> Placement:
    cardinalities = shape.cardinalities
    if ranks == 1 or settings.placement == "replicated":
        return replicate_all(cardinalities, ranks)
    features = range(len(cardinalities))
    if settings.placement == "table_wise":
        return _assign(shape, ranks, replicated=set(), row_wise=set())
    if settings.placement == "row_wise":
        return _assign(shape, ranks, replicated=set(), row_wise=set(features))
    if settings.placement == "auto":
        return _place_by_size(shape, ranks, settings)
    assert_never(settings.placement)


def _place_by_size(shape: TableShape, ranks: int, settings: Embeddings) -> Placement:
    """Returns the placement `auto`, by the rules in the docstring of this module."""
    features = range(len(shape.cardinalities))
    sizes = shape.feature_bytes
    replicated = {feature for feature in features if sizes[feature] <= settings.replicated_max_bytes}
    placed = [feature for feature in features if feature not in replicated]
    share = settings.row_wise_share * sum(sizes[feature] for feature in placed) / ranks
    row_wise = {feature for feature in placed if sizes[feature] > share}
    placement = _assign(shape, ranks, replicated, row_wise)
    for feature in sorted(features, key=lambda feature: (-sizes[feature], feature)):
        max_bytes = settings.rank_max_bytes
        rows = max(placement.rows_of(rank) for rank in range(ranks))
        if max_bytes is None or rows * shape.row_bytes <= max_bytes:
            break
        replicated, row_wise = replicated - {feature}, row_wise | {feature}
        placement = _assign(shape, ranks, replicated, row_wise)
    return placement


def _assign(shape: TableShape, ranks: int, replicated: set[int], row_wise: set[int]) -> Placement:
    """Assigns each feature that is not replicated and not row-wise to one rank."""
    sizes, lookups = shape.feature_bytes, shape.lookups
    features = range(len(sizes))
    placed = [feature for feature in features if feature not in replicated]
    all_bytes = max(sum(sizes[feature] for feature in placed), 1)
    all_lookups = max(sum(lookups[feature] for feature in placed), 1)
    costs = [sizes[feature] / all_bytes + lookups[feature] / all_lookups for feature in features]
    placements = {feature: FeaturePlacement("replicated") for feature in replicated}
    # Row 0 of the first row-wise feature is on rank 0, row 0 of the second such feature is on rank 1, and so
    # on. So no rank has all frequent rows.
    placements |= {
        feature: FeaturePlacement("row_wise", index % ranks) for index, feature in enumerate(sorted(row_wise))
    }
    rank_costs = [0.0] * ranks
    for feature in sorted(set(placed) - row_wise, key=lambda feature: (-costs[feature], feature)):
        rank = min(range(ranks), key=lambda candidate: (rank_costs[candidate], candidate))
        placements[feature] = FeaturePlacement("table_wise", rank)
        rank_costs[rank] += costs[feature]
    return Placement(shape.cardinalities, tuple(placements[feature] for feature in features), ranks)


def describe(placement: Placement, shape: TableShape, names: Sequence[str]) -> str:
    """Returns the placement as a table for the log: one line per feature, then one line per rank."""
    holders = {
        "replicated": "every rank",
        "table_wise": "rank {}",
        "row_wise": "by rows, the first on rank {}",
    }
    width = max([len("feature"), *(len(name) for name in names)])
    lines = [f"{'feature':<{width}}  {'rows':>11}  {'MiB':>9}  {'lookups':>7}  held by"]
    features = zip(
        names, placement.cardinalities, shape.feature_bytes, shape.lookups, placement.features, strict=True
    )
    for name, rows, size, lookups, feature in features:
        holder = holders[feature.kind].format(feature.rank)
        lines.append(f"{name:<{width}}  {rows:>11}  {size / 2**20:>9.2f}  {lookups:>7}  {holder}")
    for rank in range(placement.ranks):
        rows = placement.rows_of(rank)
        line = f"{f'rank {rank}':<{width}}  {rows:>11}  {rows * shape.row_bytes / 2**20:>9.2f}"
        lines.append(f"{line}  {_lookups_of(placement, shape, rank):>7.1f}")
    return "\n".join(lines)


def _lookups_of(placement: Placement, shape: TableShape, rank: int) -> float:
    """Returns a rank's number of lookups per row of the global batch, if all ids are equally frequent."""
    pairs = zip(placement.features, shape.lookups, strict=True)
    return sum(lookups * _share_of_lookups(feature, rank, placement.ranks) for feature, lookups in pairs)


def _share_of_lookups(feature: FeaturePlacement, rank: int, ranks: int) -> float:
    """Returns a rank's share of the lookups of one feature."""
    if feature.kind == "replicated" or feature.kind == "row_wise":
        return 1 / ranks
    if feature.kind == "table_wise":
        return float(feature.rank == rank)
    assert_never(feature.kind)


# The classes below describe which ranks hold which rows of a table. All ranks use the same placement.


@dataclass(frozen=True)
class FeaturePlacement:
    """The ranks that hold the rows of one feature.

    Attributes:
        kind: `replicated`: all ranks hold all rows. `table_wise`: one rank holds all rows. `row_wise`: row i
            is on rank (i + rank) % ranks. Ids are ordered by frequency, so if consecutive rows were on one
            rank, that rank would hold all frequent rows.
        rank: for `table_wise`, the rank that holds the rows; for `row_wise`, the rank that holds row 0; for
            `replicated`, 0.
    """

    kind: Literal["replicated", "table_wise", "row_wise"]
    rank: int = 0


@dataclass(frozen=True)
class Placement:
    """The placement of all features of a table.

    Attributes:
        cardinalities: number of rows of each feature.
        features: the placement of each feature.
        ranks: number of ranks.
        hot: for each feature, the number of its first rows that are in device memory. The other rows, the
            tail, are in host memory. None if all rows are on the devices.
    """

    cardinalities: tuple[int, ...]
    features: tuple[FeaturePlacement, ...]
    ranks: int = 1
    hot: tuple[int, ...] | None = None

    @property
    def exchanges(self) -> bool:
        """Returns whether some rows are not on all ranks, so that ranks must exchange rows."""
        return any(feature.kind != "replicated" for feature in self.features)

    def blocks(self, rank: int) -> tuple[RowBlock, ...]:
        """Returns the blocks of rows that a rank holds.

        Replicated rows come first, so they have the same position on all ranks. Without a tail, the blocks
        are in the order of the rank's matrix. With a tail, the matrix has the hot rows of all features first.
        But in the result, each feature's tail follows the feature's hot rows.
        """
        hot_place, tail_place, blocks = 0, self.first_tail, []
        for feature, first, step, rows in self._runs(rank):
            written = rank == 0 or self.features[feature].kind != "replicated"
            hot = self._hot_rows(feature, first, step, rows)
            if hot or self.hot is None:
                blocks.append(RowBlock(feature, first, step, hot, hot_place, written))
            if hot < rows:
                blocks.append(RowBlock(feature, first + hot * step, step, rows - hot, tail_place, written))
            hot_place, tail_place = hot_place + hot, tail_place + rows - hot
        return tuple(blocks)

    @cached_property
    def first_tail(self) -> int:
        """Returns the index at which the tail begins in the matrix of every rank.

        The index is the same on all ranks: the largest number of hot rows that any rank holds.
        """
        return max(self.hot_rows_of(rank) for rank in range(self.ranks))

    def rows_of(self, rank: int) -> int:
        """Returns the number of rows of a rank's matrix."""
        return sum(rows for _, _, _, rows in self._runs(rank))

    def hot_rows_of(self, rank: int) -> int:
        """Returns how many rows of a rank's matrix are on the device; all of them if there is no tail."""
        return sum(self._hot_rows(*run) for run in self._runs(rank))

    def tail_rows_of(self, rank: int) -> int:
        """Returns how many rows of a rank's matrix are in host memory."""
        return self.rows_of(rank) - self.hot_rows_of(rank)

    def end_of(self, rank: int) -> int:
        """Returns a number that is larger than all row indices of a rank's matrix."""
        return self.rows_of(rank) if self.hot is None else self.first_tail + self.tail_rows_of(rank)

    def _hot_rows(self, feature: int, first: int, step: int, rows: int) -> int:
        """Returns how many rows of a block of `_runs` are hot.

        The hot rows are the first rows of the block, because its rows are in the order of their ids.
        """
        if self.hot is None:
            return rows
        return min(max(-(-(self.hot[feature] - first) // step), 0), rows)

    @property
    def replicated_rows(self) -> int:
        """Returns the number of rows that all ranks hold. They are the first rows of each rank's matrix."""
        pairs = zip(self.cardinalities, self.features, strict=True)
        return sum(rows for rows, feature in pairs if feature.kind == "replicated")

    def _runs(self, rank: int) -> Iterator[tuple[int, int, int, int]]:
        """Yields (feature, first row, step, number of rows) for each block of rows that a rank holds."""
        for index, feature in enumerate(self.features):
            if feature.kind == "replicated":
                yield index, 0, 1, self.cardinalities[index]
        for index, feature in enumerate(self.features):
            rows = self.cardinalities[index]
            first = (rank - feature.rank) % self.ranks
            if feature.kind == "table_wise":
                if rank == feature.rank:
                    yield index, 0, 1, rows
            elif feature.kind == "row_wise":
                if first < rows:
                    yield index, first, self.ranks, -(-(rows - first) // self.ranks)
            elif feature.kind != "replicated":  # the first loop has yielded the replicated rows
                assert_never(feature.kind)


def replicate_all(cardinalities: Sequence[int], ranks: int = 1) -> Placement:
    """Returns the placement that puts all rows on all ranks."""
    features = tuple(FeaturePlacement("replicated") for _ in cardinalities)
    return Placement(tuple(cardinalities), features, ranks)


# The code below decides which table rows are in the memory of a device, and which are in host memory. The
# decision is a pure function of its inputs.
#
# The rows of a feature are in the order of their ids, and ids are ordered by frequency. So the first rows of
# each feature are hot: they are on the device of the rank that holds them. Each rank may hold a limited
# number of bytes on its device. Rows are chosen in descending order of lookups per byte. So as many lookups
# as possible read hot rows (the greedy rule for the fractional knapsack problem, Dantzig 1957, Operations
# Research 5).
#
# Ids that were appended when a vocabulary was extended may be more frequent than earlier ids. The row of such
# an id can only be hot together with all earlier rows of its feature. So neighbouring rows are joined into
# runs. Rows are joined until each run has fewer lookups per row than the run before it (the rule of
# pool-adjacent-violators, Barlow et al. 1972).
#
# Notation: C features of a table.

# A feature's first _SINGLE_ROWS rows are considered one by one. The other rows form _RUNS runs of equal
# length.
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
        """Returns the memory, in bytes, of all rows that a rank holds."""
        return self.placement.rows_of(rank) * self.row_bytes


@dataclass(frozen=True)
class Tiers:
    """Which rows of a model's tables are hot, that is, in the memory of a device.

    Attributes:
        hot: for each table, in the order in which the model creates tables, the number of hot rows of each
            feature.
        pinned: whether host memory of rows is pinned, which kernels on a GPU need.
        expected: the expected share of lookups that read hot rows, computed from the counts of ids. Only
            tables with rows in host memory are counted.
    """

    hot: tuple[tuple[int, ...], ...]
    pinned: bool
    expected: float


@dataclass(frozen=True)
class _Run:
    """Rows `start` to `end` of a feature. `density` is their number of lookups per byte of memory."""

    density: float
    table: int
    feature: int
    start: int
    end: int


def choose_tiers(
    tables: Sequence[PlannedTable], counts: IdCounts, rank_bytes: int, *, pinned: bool
) -> Tiers | None:
    """Returns which rows are hot; None if all rows fit into device memory.

    Args:
        tables: the tables of a model.
        counts: how often each id of a feature occurs, by the name of the feature. Ids without a count, such
            as reserved ids, are assumed not to occur. If a feature is not in `counts`, its ids are assumed to
            be equally frequent.
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
    """Returns the share of lookups that read hot rows (on a device), in tables with rows in host memory."""
    hot_lookups = all_lookups = 0.0
    for table, of_table, firsts in zip(tables, lookups, hot, strict=True):
        if tuple(firsts) == table.placement.cardinalities:
            continue
        for of_feature, first in zip(of_table, firsts, strict=True):
            hot_lookups += float(of_feature[:first].sum())
            all_lookups += float(of_feature.sum())
    return hot_lookups / all_lookups if all_lookups else 0.0


def lookups_of(table: PlannedTable, counts: IdCounts) -> list[NDArray[np.float64]]:
    """Returns, for each feature, how often each of its rows is looked up, according to `counts`."""
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
    """Yields runs (start, end, lookups per row) of a feature's rows, in the order of the rows.

    Lookups per row decrease from run to run. `lookups` (rows,) is how often each row is looked up.
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
    """Returns the share of the ranks that hold a copy of each row of a feature."""
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
    """Returns how many of a run's first rows fit; the device of rank r has room for `rows_left[r]` rows."""
    if placement.kind == "replicated":
        return min(run.end - run.start, *rows_left)
    if placement.kind == "table_wise":
        return min(run.end - run.start, rows_left[placement.rank])
    if placement.kind == "row_wise":
        ranks = len(rows_left)
        # For each rank, the position in the run of the first row for which this rank has no room.
        ends = [
            (rank - placement.rank - run.start) % ranks + rows * ranks for rank, rows in enumerate(rows_left)
        ]
        return min(run.end - run.start, *ends)
    assert_never(placement.kind)


def describe_tiers(tables: Sequence[PlannedTable], tiers: Tiers) -> str:
    """Returns the numbers of hot rows as a table for the log: one line per feature of each table."""
    width = max([len("feature"), *(len(name) for table in tables for name in table.names)])
    lines = [f"{'feature':<{width}}  {'rows':>11}  {'hot rows':>11}  {'bytes a row':>11}"]
    for table, hot in zip(tables, tiers.hot, strict=True):
        for name, rows, first in zip(table.names, table.placement.cardinalities, hot, strict=True):
            lines.append(f"{name:<{width}}  {rows:>11}  {first:>11}  {table.row_bytes:>11}")
    return "\n".join(lines)


# The code below maps ids to the ranks that hold their rows, and rows of a rank to rows of the unsharded
# table.


class Router(nn.Module):
    """Computes the key of an id: owner * span + index of the id's row in the owner's matrix.

    The owner is the rank that holds the id's row. For rows that all R ranks hold, the owner is defined as R.
    So sorted keys are sorted by owner, and the keys of rows that all ranks hold come last.

    Attributes:
        span: number of rows of the largest matrix of any rank.
        end: all keys are in [0, end).
        tiered: whether some rows are in host memory.
        hot: (C,), for each feature, the number of its first ids whose rows are on a device.
    """

    def __init__(self, placement: Placement, rank: int) -> None:
        super().__init__()
        ranks, features = placement.ranks, placement.features
        self.ranks = ranks
        self.tiered = placement.hot is not None
        self.span = max(1, *(placement.end_of(owner) for owner in range(ranks)))
        self.end = (ranks + 1) * self.span
        places = [[0] * len(features) for _ in range(ranks + 1)]
        tail_places = [[0] * len(features) for _ in range(ranks + 1)]
        for owner in range(ranks):
            for block in placement.blocks(owner):
                row = ranks if features[block.feature].kind == "replicated" else owner
                if self.tiered and block.place >= placement.first_tail:
                    # `keys` adds ids // strides, which also counts the feature's rows on this rank's device.
                    # They come first, so subtract their number.
                    tail_places[row][block.feature] = block.place - block.first // block.step
                else:
                    places[row][block.feature] = block.place
        blocks = sorted(placement.blocks(rank), key=lambda block: block.place)
        whole = {block.feature: block for block in replace(placement, hot=None).blocks(rank)}
        starts = list(accumulate(placement.cardinalities, initial=0))
        self._register("ends", [self.span * (owner + 1) for owner in range(ranks + 1)])
        self._register("places", [place for row in places for place in row])  # (R + 1, C), flat
        self._register("tail_places", [place for row in tail_places for place in row])
        self._register("hot", placement.hot or placement.cardinalities)
        self._register("replicated_places", places[ranks])
        self._register("replicated_tail_places", tail_places[ranks])
        self._register("features", range(len(features)))
        self._register("owners", [ranks if it.kind == "replicated" else it.rank for it in features])
        self._register("row_wise", [it.kind == "row_wise" for it in features])
        self._register("strides", [ranks if it.kind == "row_wise" else 1 for it in features])
        self._register("block_ends", [block.place + block.rows for block in blocks])
        self._register("block_places", [block.place for block in blocks])
        self._register("block_steps", [block.step for block in blocks])
        self._register("block_starts", [starts[block.feature] + block.first for block in blocks])
        untiered = [
            whole[block.feature].place + (block.first - whole[block.feature].first) // block.step
            for block in blocks
        ]
        self._register("block_untiered", untiered)

    ends: Tensor
    places: Tensor
    tail_places: Tensor
    hot: Tensor
    replicated_places: Tensor
    replicated_tail_places: Tensor
    block_untiered: Tensor
    features: Tensor
    owners: Tensor
    row_wise: Tensor
    strides: Tensor
    block_ends: Tensor
    block_places: Tensor
    block_steps: Tensor
    block_starts: Tensor

    def _register(self, name: str, values: Sequence[int]) -> None:
        """Registers a buffer that moves with the module between devices and is not saved in the state."""
        self.register_buffer(name, torch.tensor(list(values), dtype=torch.int64), persistent=False)

    def keys(self, ids: Tensor, features: Tensor) -> Tensor:
        """Returns the int64 keys of ids.

        `features` contains the index of each id's feature. Its shape must be broadcastable to the shape of
        `ids`.
        """
        first_owner, row_wise = self.owners[features], self.row_wise[features]
        owner = torch.where(row_wise.bool(), (ids + first_owner) % self.ranks, first_owner)
        index = owner * len(self.owners) + features
        place = self.places[index]
        if self.tiered:
            place = torch.where(ids < self.hot[features], place, self.tail_places[index])
        return owner * self.span + place + ids // self.strides[features]

    def replicated_rows(self, ids: Tensor, features: Tensor) -> Tensor:
        """Returns the rows of ids in this rank's matrix, if every rank holds all rows. See `keys`."""
        place = self.replicated_places[features]
        if self.tiered:
            place = torch.where(ids < self.hot[features], place, self.replicated_tail_places[features])
        return ids + place

    def group(self, keys: Tensor) -> tuple[Groups, list[int]]:
        """Groups elements by their keys (N,), and returns how many distinct keys each owner has.

        There are R + 1 counts: one per rank, and then one for the rows that all ranks hold.
        """
        return group_and_count(keys, self.ends, self.end)

    def unsharded_rows(self, rows: Tensor) -> Tensor:
        """Converts row indices of this rank's matrix to row indices of the unsharded table, (N,) int64."""
        block = torch.searchsorted(self.block_ends, rows, right=True)
        return self.block_starts[block] + (rows - self.block_places[block]) * self.block_steps[block]

    def untiered_rows(self, rows: Tensor) -> Tensor:
        """Converts this rank's row indices to those that it would have if all rows were on the device."""
        block = torch.searchsorted(self.block_ends, rows, right=True)
        return self.block_untiered[block] + rows - self.block_places[block]
