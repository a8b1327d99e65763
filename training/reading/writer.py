"""Writes the rows of a rank's shards into pools, at their places in the order of the batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.reading.columns import Columns
from training.reading.order import Order, Run
from training.reading.pool import Pool, Pools
from training.reading.sharding import Piece
from training.reading.stacking import Stacker


@dataclass(frozen=True)
class Fill:
    """What one pool holds.

    Attributes:
        order: of the epoch.
        window: which pool of the epoch it is.
        shards: the rank's shards.
        runs: of each shard, the rows of its stream that belong here.
    """

    order: Order
    window: int
    shards: Sequence[int]
    runs: Sequence[Sequence[Run]]

    @property
    def groups(self) -> list[int]:
        """The row groups of all runs, in the order in which they are needed."""
        return list(dict.fromkeys(run.piece.group for own in self.runs for run in own))


class Writer:
    """Keeps a row group for as long as the next pool needs it.

    Args:
        pools: of S steps and L rows a step.
        num_shards: of the rank; each gives L / num_shards rows to a step.
        num_dense, num_ids, list_lengths: columns, as Stacker takes them.
        arriving: the row groups that a pool needs and the one before did not, in the order of `Fill.groups`.
    """

    def __init__(
        self,
        pools: Pools,
        num_shards: int,
        num_dense: int,
        num_ids: int,
        list_lengths: Sequence[int],
        arriving: Iterator[Columns],
    ) -> None:
        self._pools = pools
        self._num_shards = num_shards
        rows = pools.steps * pools.rows // num_shards
        self._labels = Stacker(1, (), np.float32, rows)
        self._dense = Stacker(num_dense, (), np.float32, rows)
        self._categorical = Stacker(num_ids, list_lengths, np.int32, rows)
        self._arriving = arriving
        self._held: dict[int, Columns] = {}
        self._blocks: dict[tuple[int, Piece], NDArray[np.int64] | None] = {}

    def write(self, fill: Fill) -> Pool:
        """A pool of these rows; places that no row is left for hold zeros, their weights too."""
        self._arrange(fill)
        pool = self._pools.take()
        steps, rows = self._pools.steps, self._pools.rows // self._num_shards
        pool.weights.fill_(1)
        shape = (steps, self._num_shards, rows, -1)
        labels, weights = pool.labels.view(shape).numpy(), pool.weights.view(shape).numpy()
        dense, categorical = (
            each.view(steps, self._num_shards, rows, each.shape[2]).numpy()
            for each in (pool.dense, pool.categorical)
        )
        for place, (shard, own) in enumerate(zip(fill.shards, fill.runs, strict=True)):
            written = self._stack(fill, own)
            order = fill.order.window(shard, fill.window, written)
            self._labels.deliver(written, order, labels[:, place])
            self._dense.deliver(written, order, dense[:, place])
            self._categorical.deliver(written, order, categorical[:, place])
            if written < steps * rows:
                weights[:, place] = (np.arange(steps * rows) < written).reshape(steps, rows, 1)
        return pool

    def _arrange(self, fill: Fill) -> None:
        """Has the row groups of this pool at hand, and lets go of the others before new ones take memory."""
        groups = fill.groups
        self._held = {group: columns for group, columns in self._held.items() if group in groups}
        for group in groups:
            if group not in self._held:
                self._held[group] = next(self._arriving)
        pieces = {(fill.order.epoch, run.piece) for own in fill.runs for run in own}
        self._blocks = {
            each: self._blocks[each] if each in self._blocks else fill.order.blocks(each[1])
            for each in pieces
        }

    def _stack(self, fill: Fill, runs: Sequence[Run]) -> int:
        """Stacks the rows of a shard's window; returns how many."""
        place = 0
        for run in runs:
            columns = self._held[run.piece.group]
            blocks = self._blocks[fill.order.epoch, run.piece]
            rows = range(run.start, run.stop)
            self._labels.write([columns.label], run.piece.start, blocks, rows, place)
            self._dense.write(columns.dense, run.piece.start, blocks, rows, place)
            self._categorical.write(columns.categorical, run.piece.start, blocks, rows, place)
            place += len(rows)
        return place
