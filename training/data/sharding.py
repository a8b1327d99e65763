"""Assigns rows to global batches, as a pure function of the sizes of row groups.

The assignment does not depend on the number of ranks. The rows of a split, in manifest order, are divided
into `num_shards` logical shards of equal size. If the rows of a row group belong to two shards, both shards
read the row group, and each uses only its own rows. Each global batch takes `shard_rows` rows of every shard.
A rank owns complete neighbouring shards, so the ranks' batches together are the global batch. When a shard
has no more rows, it is padded with rows of weight zero, so that all ranks do the same number of steps.

A shard has the same rows in every epoch, so a rank reads the same files in every epoch. `RowOrder` shuffles
the rows of a shard.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from conf.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class DataFile:
    """A file of a split, as its manifest describes it.

    Attributes:
        path: absolute local path, or URI, as it appears in messages.
        rows: number of rows.
        row_groups: number of rows of each row group. If empty, the row groups are not known, and the complete
            file is read at once.
        size_bytes: size of the file; None if not known.
        staged: path of the file's copy on local disk (staging.py); None if the file has no copy.
        dt: the date of its feature partition, as an ISO date; empty if it is not known.
        table: the rows, if they are in memory; otherwise None. A file in memory has one row group, and its
            `path` is used only in messages.
    """

    path: str
    rows: int
    row_groups: tuple[int, ...] = ()
    size_bytes: int | None = None
    staged: str | None = None
    dt: str = ""
    table: pa.Table | None = field(default=None, compare=False, repr=False)

    @property
    def on_disk(self) -> str:
        """The path from which the file is read."""
        return self.staged or self.path


@dataclass(frozen=True)
class RowGroup:
    """Row group `index` of a file with `count` row groups. If `count` is 1, it is the complete file."""

    file: DataFile
    index: int
    count: int
    rows: int


@dataclass(frozen=True)
class Piece:
    """Rows [start, stop) of the row group that has the index `group` among the row groups of the split."""

    group: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


@dataclass(frozen=True)
class ShardPlan:
    """The logical shards of one split.

    Attributes:
        shards: the pieces of each shard, in manifest order.
        shard_rows: number of rows that each global batch takes from every shard.
    """

    shards: tuple[tuple[Piece, ...], ...]
    shard_rows: int

    @cached_property
    def sizes(self) -> list[int]:
        """Number of rows of each shard."""
        return [sum(piece.rows for piece in shard) for shard in self.shards]

    @cached_property
    def steps(self) -> int:
        """Number of global batches in an epoch."""
        return -(-max(self.sizes) // self.shard_rows)

    @cached_property
    def weights(self) -> list[int]:
        """Number of rows of each global batch of an epoch, without padding.

        Every rank divides the sum of its losses by this number.
        """
        firsts = np.arange(self.steps) * self.shard_rows
        rows = np.zeros(self.steps, dtype=np.int64)
        for size, shards in Counter(self.sizes).items():
            rows += shards * (size - firsts).clip(0, self.shard_rows)
        of_steps: list[int] = rows.tolist()
        return of_steps


def row_groups(files: Sequence[DataFile]) -> list[RowGroup]:
    """Returns the row groups of some files, in the order of the files.

    Raises:
        DataError: the row groups of a file do not add up to the file's number of rows.
    """
    groups = []
    for file in files:
        sizes = file.row_groups or (file.rows,)
        if sum(sizes) != file.rows:
            raise DataError(
                f"{file.path} has {file.rows} rows, but its row groups together have {sum(sizes)} rows, "
                "according to its manifest",
                "run build_features again for the day of this file",
            )
        groups += [RowGroup(file, index, len(sizes), rows) for index, rows in enumerate(sizes)]
    return groups


def plan_shards(group_rows: Sequence[int], num_shards: int, global_batch_size: int) -> ShardPlan:
    """Divides row groups into shards whose sizes differ by at most one row.

    Args:
        group_rows: rows of each row group.
        num_shards: number of shards.
        global_batch_size: rows in a global batch.

    Raises:
        ConfigError: the batch size is not a multiple of the number of shards.
    """
    if global_batch_size % num_shards:
        raise ConfigError(
            f"global_batch_size={global_batch_size} must be a multiple of num_shards={num_shards}",
            "change train.global_batch_size or train.num_shards",
        )
    ends = np.cumsum([0, *group_rows])
    total = int(ends[-1])
    cuts = [total * shard // num_shards for shard in range(num_shards + 1)]
    shards = []
    for first, last in pairwise(cuts):
        pieces = []
        for group in range(int(np.searchsorted(ends, first, side="right")) - 1, len(group_rows)):
            start, stop = max(first - int(ends[group]), 0), min(last - int(ends[group]), group_rows[group])
            if int(ends[group]) >= last:
                break
            if start < stop:
                pieces.append(Piece(group, start, stop))
        shards.append(tuple(pieces))
    return ShardPlan(tuple(shards), global_batch_size // num_shards)


def shards_of_rank(num_shards: int, rank: int, num_ranks: int) -> range:
    """Returns the neighbouring shards of a rank.

    All ranks have the same number of shards, or numbers that differ by one.

    Raises:
        ConfigError: there are more ranks than shards.
    """
    if num_ranks > num_shards:
        raise ConfigError(
            f"num_shards={num_shards} is less than num_ranks={num_ranks}, but every rank needs a shard",
            "raise train.num_shards or lower train.num_ranks",
        )
    return range(num_shards * rank // num_ranks, num_shards * (rank + 1) // num_ranks)


# The code below shuffles the rows of a shard. Their order in an epoch is a pure function of seed, epoch,
# shard and shard plan.
#
# There are three shuffles:
#
# 1. A shard consists of pieces, each of which is a range of rows of one row group. The order of the pieces is
#    shuffled.
# 2. Within a piece, blocks of `BLOCK_ROWS` neighbouring rows are shuffled. A block is a few cache lines of a
#    column, so reading the blocks in a shuffled order takes no longer than reading the column in order.
# 3. Shuffles 1 and 2 result in a stream of rows, which is divided into *windows*. A window consists of those
# rows of the shard that one buffer pool contains. The rows of a window are shuffled one by one.
#
# The blocks of a window come from hundreds of different positions in a piece. If a pool has n steps, a row is
# on average in the same batch as (BLOCK_ROWS - 1) / n other rows of its block.
#
# If users are shuffled instead of rows, the rows of a row group are ordered by user, and the third shuffle
# moves blocks of rows instead of rows. So rows of a user stay next to each other in a batch.

BLOCK_ROWS = 32

# The seed of each shuffle contains one of these numbers, so the three shuffles use different random numbers.
_PIECES, _BLOCKS, _WINDOW = range(3)


@dataclass(frozen=True)
class RowRange:
    """A range of rows of a piece. Rows are counted from 0 in the order in which the piece is read."""

    piece: Piece
    start: int
    stop: int


@dataclass(frozen=True)
class RowOrder:
    """The row order of one epoch. Without a seed, rows keep the order of the files.

    A shard consists of pieces. A piece is a range of rows of one row group, and is divided into blocks of
    `BLOCK_ROWS` neighbouring rows.

    Attributes:
        seed: seed of the shuffles; None if nothing is shuffled.
        epoch: index of the epoch.
        by_user: whether the third shuffle keeps the rows of a block together (`train.shuffle=users`).
    """

    seed: int | None
    epoch: int
    by_user: bool = False

    def pieces(self, shard: int, pieces: Sequence[Piece]) -> list[Piece]:
        """Returns a shard's pieces in the order in which they are read."""
        if self.seed is None or len(pieces) < 2:  # a single piece needs no shuffle
            return list(pieces)
        order = self._random(_PIECES, shard).permutation(len(pieces))
        return [pieces[int(index)] for index in order]

    def blocks(self, piece: Piece) -> NDArray[np.int64] | None:
        """Returns the order of a piece's full blocks, shape (rows // BLOCK_ROWS,); None if there is no seed.

        If the last block of the piece is not full, its rows are read last.
        """
        if self.seed is None:
            return None
        return self._random(_BLOCKS, piece.group, piece.start).permutation(piece.rows // BLOCK_ROWS)

    def window(self, shard: int, window: int, rows: int) -> NDArray[np.int64] | None:
        """Returns a permutation, shape (rows,), of a shard's rows in one pool; None if there is no seed.

        `window` is the index of the pool within the epoch. If blocks stay together, the rows of a last block
        that is not full come last.
        """
        if self.seed is None:
            return None
        random = self._random(_WINDOW, shard, window)
        if not self.by_user:
            return random.permutation(rows)
        whole = rows // BLOCK_ROWS * BLOCK_ROWS
        blocks = random.permutation(rows // BLOCK_ROWS)[:, None] * BLOCK_ROWS + np.arange(BLOCK_ROWS)
        return np.concatenate([blocks.ravel(), np.arange(whole, rows)])

    def _random(self, *key: int) -> np.random.Generator:
        return np.random.default_rng([self.seed or 0, self.epoch, *key])


class ShardStream:
    """The stream of a shard's rows in one epoch: the rows of all its pieces, concatenated."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces
        self._starts = list(accumulate((piece.rows for piece in pieces), initial=0))

    def ranges(self, start: int, stop: int) -> list[RowRange]:
        """Returns the rows at the positions `start` to `stop` - 1 of the stream, as ranges of rows of pieces.

        Empty ranges are left out. If the stream ends before `stop`, the ranges have fewer than `stop - start`
        rows.
        """
        ranges = []
        for index in range(max(bisect_right(self._starts, start) - 1, 0), len(self._pieces)):
            first, piece = self._starts[index], self._pieces[index]
            if first >= stop:
                break
            low, high = max(start - first, 0), min(stop - first, piece.rows)
            if low < high:
                ranges.append(RowRange(piece, low, high))
        return ranges
