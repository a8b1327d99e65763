"""In which order the rows of a shard come in an epoch: a pure function of seed, epoch, shard and plan.

Three shuffles follow each other:

1. the shard's pieces (its parts of row groups) come in random order;
2. within a piece, blocks of `BLOCK_ROWS` neighbouring rows come in random order, drawn from all of the piece: a block is a
   few cache lines of a column, so that this costs what reading the column in its order costs;
3. the rows that a shard brings to one pool (a *window* of the stream that 1 and 2 make) come in random order, every one.

Rows that were neighbours in a file thus meet in a window that holds blocks from hundreds of places; with a pool of n steps,
a row finds (BLOCK_ROWS - 1) / n of its 31 neighbours in its own batch on average.
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

# What tells the generators of the three shuffles apart.
_PIECES, _BLOCKS, _WINDOW = range(3)


@dataclass(frozen=True)
class Run:
    """Rows [start, stop) of the order in which a piece's rows come."""

    piece: Piece
    start: int
    stop: int


@dataclass(frozen=True)
class Order:
    """The order of one epoch; without a seed rows come in the order of the files."""

    seed: int | None
    epoch: int

    def pieces(self, shard: int, pieces: Sequence[Piece]) -> list[Piece]:
        """The order in which a shard's pieces are read."""
        if self.seed is None:
            return list(pieces)
        order = self._random(_PIECES, shard).permutation(len(pieces))
        return [pieces[int(index)] for index in order]

    def blocks(self, piece: Piece) -> NDArray[np.int64] | None:
        """(rows // BLOCK_ROWS,) the order of a piece's whole blocks; the rows after the last of them come at its end.

        None where rows keep their order.
        """
        if self.seed is None:
            return None
        return self._random(_BLOCKS, piece.group, piece.start).permutation(piece.rows // BLOCK_ROWS)

    def window(self, shard: int, window: int, rows: int) -> NDArray[np.int64] | None:
        """(rows,) which row of a shard's window stands at each place of it; None where rows keep their order."""
        return None if self.seed is None else self._random(_WINDOW, shard, window).permutation(rows)

    def _random(self, *of: int) -> np.random.Generator:
        return np.random.default_rng([self.seed or 0, self.epoch, *of])


class Stream:
    """The rows of a shard in one epoch, one piece after the other."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces
        self._starts = list(accumulate((piece.rows for piece in pieces), initial=0))

    def runs(self, start: int, stop: int) -> list[Run]:
        """Rows [start, stop) of the stream, without empty runs; fewer rows where it ends before."""
        found = []
        for index in range(max(bisect_right(self._starts, start) - 1, 0), len(self._pieces)):
            first, piece = self._starts[index], self._pieces[index]
            if first >= stop:
                break
            low, high = max(start - first, 0), min(stop - first, piece.rows)
            if low < high:
                found.append(Run(piece, low, high))
        return found
