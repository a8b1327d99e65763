"""The order of a shard's rows in an epoch: a pure function of seed, epoch, shard and shard plan.

There are three shuffles:

1. A shard consists of pieces, each of which is a range of rows of one row group. The order of the pieces is
   shuffled.
2. Within a piece, blocks of `BLOCK_ROWS` neighbouring rows are shuffled. A block is a few cache lines of a
   column, so reading the blocks in a shuffled order takes no longer than reading the column in order.
3. Shuffles 1 and 2 result in a stream of rows, which is divided into *windows*. A window is the rows of the
   shard that one buffer pool contains. The rows of a window are shuffled one by one.

A window has blocks from hundreds of places in a piece. If a pool has n steps, a row is on average in the same
batch as (BLOCK_ROWS - 1) / n other rows of its block.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from training.data.sharding import Piece

BLOCK_ROWS = 32

# Numbers that make the seeds of the three shuffles different.
_PIECES, _BLOCKS, _WINDOW = range(3)


@dataclass(frozen=True)
class RowRange:
    """The rows [start, stop) of a piece, in the order in which the rows of the piece are read."""

    piece: Piece
    start: int
    stop: int


@dataclass(frozen=True)
class RowOrder:
    """The row order of one epoch. Without a seed, rows keep the order of the files.

    A shard consists of pieces. A piece is a range of rows of one row group, and is divided into blocks of
    `BLOCK_ROWS` neighbouring rows.
    """

    seed: int | None
    epoch: int

    def pieces(self, shard: int, pieces: Sequence[Piece]) -> list[Piece]:
        """Returns a shard's pieces in the order in which they are read."""
        if self.seed is None or len(pieces) < 2:  # without this condition, one piece gives the same result
            return list(pieces)
        order = self._random(_PIECES, shard).permutation(len(pieces))
        return [pieces[int(index)] for index in order]

    def blocks(self, piece: Piece) -> NDArray[np.int64] | None:
        """Returns the order of a piece's full blocks, shape (rows // BLOCK_ROWS,); None without a seed.

        The rows after the last full block come last.
        """
        if self.seed is None:
            return None
        return self._random(_BLOCKS, piece.group, piece.start).permutation(piece.rows // BLOCK_ROWS)

    def window(self, shard: int, window: int, rows: int) -> NDArray[np.int64] | None:
        """Returns a permutation, shape (rows,), of a shard's rows in one pool; None without a seed.

        `window` is the index of the pool within the epoch.
        """
        return None if self.seed is None else self._random(_WINDOW, shard, window).permutation(rows)

    def _random(self, *key: int) -> np.random.Generator:
        return np.random.default_rng([self.seed or 0, self.epoch, *key])


class ShardStream:
    """The rows of a shard in one epoch, one piece after the other."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces
        self._starts = list(accumulate((piece.rows for piece in pieces), initial=0))

    def ranges(self, start: int, stop: int) -> list[RowRange]:
        """Returns the rows [start, stop) of the stream, as ranges of rows of pieces.

        Empty ranges are left out. If the stream ends before `stop`, the ranges together have fewer rows.
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
