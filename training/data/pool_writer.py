"""Writes the rows of a rank's shards to buffer pools, in the order of the batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.data import transpose
from training.data.buffer_pool import Pool, Pools
from training.data.columns import Columns
from training.data.row_order import RowOrder, RowRange
from training.data.sharding import Piece
from training.data.transpose import Transposer
from training.native.shard_rows import PoolMemory, RangeRows, ShardRows


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
        threads: the largest number of shards that are written in parallel.
    """

    def __init__(self, pools: Pools, num_shards: int, arriving: Iterator[Columns], threads: int) -> None:
        self._pools = pools
        self._num_shards = num_shards
        self._arriving = arriving
        self._threads = threads
        self._transposers: dict[int, tuple[Transposer, ...]] = {}  # by row group: label, dense, categorical
        self._blocks: dict[tuple[int, Piece], NDArray[np.int64] | None] = {}

    def write(self, contents: PoolContents) -> Pool:
        """Returns a pool with the rows in `contents`. The pool's unused rows and their weights are zero."""
        self._load_row_groups(contents)
        pool = self._pools.take()
        rows = self._pools.steps * self._pools.rows
        tensors = (pool.labels, pool.dense, pool.categorical)
        memory = PoolMemory(
            [tensor.view(rows, -1 if tensor.numel() else 0).numpy() for tensor in tensors],
            pool.weights.view(rows).numpy(),
            self._pools.steps,
            self._pools.rows // self._num_shards,
            self._pools.rows,
        )
        shards = [self._shard(contents, index, memory.shard_rows) for index in range(self._num_shards)]
        transpose.write_pool(shards, memory, self._threads)
        return pool

    def _shard(self, contents: PoolContents, index: int, shard_rows: int) -> ShardRows[Transposer]:
        ranges = [
            RangeRows(
                self._transposers[rows.piece.group],
                rows.piece.start,
                self._blocks[contents.order.epoch, rows.piece],
                range(rows.start, rows.stop),
            )
            for rows in contents.ranges[index]
        ]
        num_rows = sum(len(rows.rows) for rows in ranges)
        order = contents.order.window(contents.shards[index], contents.window, num_rows)
        return ShardRows(ranges, order, index * shard_rows)

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
