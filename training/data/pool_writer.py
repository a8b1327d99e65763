"""Writes the rows of a rank's shards to buffer pools, in the order of the batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.data import transpose
from training.data.buffer_pool import Pool, Pools
from training.data.columns import Columns
from training.data.row_order import RowOrder, RowRange
from training.data.sharding import Piece
from training.data.transpose import Transposer


@dataclass(frozen=True)
class PoolContents:
    """Says which rows one pool contains.

    Attributes:
        order: the row order of the epoch.
        window: the index of the pool within the epoch.
        shards: the rank's shards.
        ranges: for each shard, the ranges of the shard's rows that belong to this pool.
    """

    order: RowOrder
    window: int
    shards: Sequence[int]
    ranges: Sequence[Sequence[RowRange]]

    @property
    def groups(self) -> list[int]:
        """Returns the indices of the row groups that contain these rows, in the order of the ranges."""
        all_ranges = (rows for of_shard in self.ranges for rows in of_shard)
        return list(dict.fromkeys(rows.piece.group for rows in all_ranges))


class PoolWriter:
    """Writes pools. A row group stays in memory as long as consecutive pools need its rows.

    Args:
        pools: lends pools. A pool contains the rows of S steps, L rows per step.
        num_shards: number of this rank's shards. Each shard has L / num_shards rows in a step.
        arriving: yields the columns of row groups. For each pool, these are the row groups that the previous
            pool did not need, in the order of `PoolContents.groups`.
        threads: number of shards that are written in parallel.
    """

    def __init__(self, pools: Pools, num_shards: int, arriving: Iterator[Columns], threads: int) -> None:
        self._pools = pools
        self._num_shards = num_shards
        self._arriving = arriving
        self._threads = ThreadPoolExecutor(min(threads, num_shards), "nightrank-rows")
        self._transposers: dict[int, tuple[Transposer, ...]] = {}  # by row group: label, dense, categorical
        self._blocks: dict[tuple[int, Piece], NDArray[np.int64] | None] = {}

    def __enter__(self) -> PoolWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()

    def write(self, contents: PoolContents) -> Pool:
        """Returns a pool with the rows in `contents`. The pool's unused rows and their weights are zero."""
        self._load_row_groups(contents)
        pool = self._pools.take()
        rows = self._pools.steps * self._pools.rows
        tensors = (pool.labels, pool.dense, pool.categorical)
        targets = [tensor.view(rows, -1 if tensor.numel() else 0).numpy() for tensor in tensors]
        weights = pool.weights.view(rows).numpy()

        def write_shard(index: int) -> None:
            self._write_shard(contents, index, targets, weights)

        list(self._threads.map(write_shard, range(self._num_shards)))
        return pool

    def _write_shard(
        self,
        contents: PoolContents,
        index: int,
        targets: Sequence[NDArray[Any]],
        weights: NDArray[np.float32],
    ) -> None:
        ranges = contents.ranges[index]
        num_rows = sum(rows.stop - rows.start for rows in ranges)
        shard_rows, batch_rows = self._pools.rows // self._num_shards, self._pools.rows
        order = contents.order.window(contents.shards[index], contents.window, num_rows)
        first = index * shard_rows
        target_rows = transpose.target_rows(num_rows, order, shard_rows, batch_rows, first)
        start = 0
        for row_range in ranges:
            rows = range(row_range.start, row_range.stop)
            blocks = self._blocks[contents.order.epoch, row_range.piece]
            range_targets = target_rows[start : start + len(rows)]
            transposers = self._transposers[row_range.piece.group]
            for transposer, target in zip(transposers, targets, strict=True):
                transposer.transpose(row_range.piece.start, blocks, rows, range_targets, target)
            start += len(rows)
        weights[target_rows] = 1
        all_rows = self._pools.steps * shard_rows
        if num_rows < all_rows:
            empty_rows = transpose.target_rows(all_rows, None, shard_rows, batch_rows, first)[num_rows:]
            for target in (*targets, weights):
                target[empty_rows] = 0

    def _load_row_groups(self, contents: PoolContents) -> None:
        """Releases the row groups that this pool does not need, and adds those that are not yet in memory."""
        groups = contents.groups
        self._transposers = {group: kept for group, kept in self._transposers.items() if group in groups}
        for group in groups:
            if group not in self._transposers:
                columns = next(self._arriving)
                kinds = ([columns.label], columns.dense, columns.categorical)
                self._transposers[group] = tuple(transpose.transposer_of(kind) for kind in kinds)
        epoch = contents.order.epoch
        pieces = {rows.piece for of_shard in contents.ranges for rows in of_shard}
        self._blocks = {
            (epoch, piece): self._blocks[epoch, piece]
            if (epoch, piece) in self._blocks
            else contents.order.blocks(piece)
            for piece in pieces
        }
