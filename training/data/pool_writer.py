"""Writes the rows of a rank's shards into pools, at their places in the order of the batches."""

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
from training.data.row_order import Order, Run
from training.data.sharding import Piece
from training.data.transpose import Source


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
        arriving: the row groups that a pool needs and the one before did not, in the order of `Fill.groups`.
        threads: shards that are written at once.
    """

    def __init__(self, pools: Pools, num_shards: int, arriving: Iterator[Columns], threads: int) -> None:
        self._pools = pools
        self._num_shards = num_shards
        self._arriving = arriving
        self._threads = ThreadPoolExecutor(min(threads, num_shards), "nightrank-rows")
        self._held: dict[int, tuple[Source, ...]] = {}
        self._blocks: dict[tuple[int, Piece], NDArray[np.int64] | None] = {}

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()

    def write(self, fill: Fill) -> Pool:
        """A pool of these rows; places that no row is left for hold zeros, their weights too."""
        self._arrange(fill)
        pool = self._pools.take()
        rows = self._pools.steps * self._pools.rows
        tensors = (pool.labels, pool.dense, pool.categorical)
        into = [each.view(rows, -1 if each.numel() else 0).numpy() for each in tensors]
        weights = pool.weights.view(rows).numpy()
        list(
            self._threads.map(
                lambda place: self._write_shard(fill, place, into, weights), range(self._num_shards)
            )
        )
        return pool

    def _write_shard(
        self, fill: Fill, place: int, into: Sequence[NDArray[Any]], weights: NDArray[np.float32]
    ) -> None:
        runs = fill.runs[place]
        written = sum(run.stop - run.start for run in runs)
        own, batch = self._pools.rows // self._num_shards, self._pools.rows
        order = fill.order.window(fill.shards[place], fill.window, written)
        places = transpose.places(written, order, own, batch, place * own)
        start = 0
        for run in runs:
            rows = range(run.start, run.stop)
            blocks = self._blocks[fill.order.epoch, run.piece]
            here = places[start : start + len(rows)]
            for source, target in zip(self._held[run.piece.group], into, strict=True):
                source.turn(run.piece.start, blocks, rows, here, target)
            start += len(rows)
        weights[places] = 1
        if written < self._pools.steps * own:
            every = transpose.places(self._pools.steps * own, None, own, batch, place * own)
            for target in (*into, weights):
                target[every[written:]] = 0

    def _arrange(self, fill: Fill) -> None:
        """Has the row groups of this pool at hand, and lets go of the others before new ones take memory."""
        groups = fill.groups
        self._held = {group: sources for group, sources in self._held.items() if group in groups}
        for group in groups:
            if group not in self._held:
                columns = next(self._arriving)
                kinds = ([columns.label], columns.dense, columns.categorical)
                self._held[group] = tuple(transpose.source_of(each) for each in kinds)
        pieces = {(fill.order.epoch, run.piece) for own in fill.runs for run in own}
        self._blocks = {
            each: self._blocks[each] if each in self._blocks else fill.order.blocks(each[1])
            for each in pieces
        }
