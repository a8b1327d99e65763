"""Which rows are in which batch: a pure function of the file sizes, the same whatever the number of ranks.

The rows of a split, in manifest order, are cut into `num_shards` logical shards of equal size; where a cut falls
inside a file, both shards read that file and keep their part of it. Each global batch takes `shard_rows` rows of
every shard, and a rank owns whole neighbouring shards, so that the ranks' batches laid side by side are the global
batch. A shard that runs out is padded with rows of weight zero: every rank takes the same number of steps.

A shard consists of the same rows in every epoch, so a rank reads the same files again; their order changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from conf.errors import ConfigError


@dataclass(frozen=True)
class DataFile:
    """A file of a split, by its absolute local path, and the rows its manifest says it holds."""

    path: str
    rows: int


@dataclass(frozen=True)
class Piece:
    """Rows [start, stop) of the file with that index."""

    file: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class ShardPlan:
    """The logical shards of one split.

    Attributes:
        shards: the pieces of each shard, in manifest order.
        shard_rows: rows each global batch takes of every shard.
    """

    shards: tuple[tuple[Piece, ...], ...]
    shard_rows: int

    @property
    def sizes(self) -> list[int]:
        """Rows of each shard."""
        return [sum(piece.rows for piece in shard) for shard in self.shards]

    @property
    def steps(self) -> int:
        """Global batches an epoch."""
        return -(-max(self.sizes) // self.shard_rows)

    def weight(self, step: int) -> int:
        """Rows of a global batch that are not padding: what its loss is divided by, on every rank."""
        first = step * self.shard_rows
        return sum(min(max(size - first, 0), self.shard_rows) for size in self.sizes)


def plan_shards(file_rows: Sequence[int], num_shards: int, global_batch_size: int) -> ShardPlan:
    """Cuts files with these numbers of rows into shards that differ by one row at most.

    Raises:
        ConfigError: the batch does not divide by the shards.
    """
    if global_batch_size % num_shards:
        raise ConfigError(
            f"global_batch_size={global_batch_size} must be a multiple of num_shards={num_shards}",
            "change train.global_batch_size or train.num_shards",
        )
    ends = np.cumsum([0, *file_rows])
    total = int(ends[-1])
    cuts = [total * shard // num_shards for shard in range(num_shards + 1)]
    shards = []
    for first, last in pairwise(cuts):
        pieces = []
        for file in range(int(np.searchsorted(ends, first, side="right")) - 1, len(file_rows)):
            start, stop = max(first - int(ends[file]), 0), min(last - int(ends[file]), file_rows[file])
            if int(ends[file]) >= last:
                break
            if start < stop:
                pieces.append(Piece(file, start, stop))
        shards.append(tuple(pieces))
    return ShardPlan(tuple(shards), global_batch_size // num_shards)


def shards_of_rank(num_shards: int, rank: int, num_ranks: int) -> range:
    """The neighbouring shards a rank owns: as many as any other rank, or one fewer where they do not divide.

    Raises:
        ConfigError: a rank would own none.
    """
    if num_ranks > num_shards:
        raise ConfigError(
            f"num_shards={num_shards} are fewer than num_ranks={num_ranks}",
            "raise train.num_shards or lower train.num_ranks",
        )
    return range(num_shards * rank // num_ranks, num_shards * (rank + 1) // num_ranks)


def piece_order(shard: int, pieces: Sequence[Piece], seed: int, epoch: int) -> list[Piece]:
    """The order in which a shard's pieces are read in an epoch."""
    order = np.random.default_rng([seed, epoch, shard]).permutation(len(pieces))
    return [pieces[int(index)] for index in order]


def row_positions(piece: Piece, seed: int, epoch: int) -> NDArray[np.int64]:
    """(rows,) the position that each row of a piece takes in an epoch: a permutation of its rows."""
    return np.random.default_rng([seed, epoch, piece.file, piece.start]).permutation(piece.rows)
