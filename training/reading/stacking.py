"""Columns in, rows out: what turns the columns of row groups into the shuffled, row-major rows of a pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.reading.order import BLOCK_ROWS

# Rows that are turned from columns into rows at a time: what 4096 rows of 40 columns take stays within a core's cache.
_CHUNK_ROWS = 4096


class Stacker:
    """Rows of one window, of one kind of columns, in memory that is used again for every window.

    Args:
        singles: how many columns hold one number a row; they come first.
        list_lengths: numbers a row of each of the columns that follow.
        rows: the most that a window has.
    """

    def __init__(self, singles: int, list_lengths: Sequence[int], dtype: Any, rows: int) -> None:
        width = singles + sum(list_lengths)
        # A chunk may begin and end within blocks.
        most = min(_CHUNK_ROWS, rows) + 2 * BLOCK_ROWS
        self._singles = np.empty((singles, most), dtype=dtype)
        self._lists = [np.empty((most, length), dtype=dtype) for length in list_lengths]
        self._rows = np.empty((rows, width), dtype=dtype)
        self._shuffled = np.empty((rows, width), dtype=dtype)

    def write(
        self,
        columns: Sequence[NDArray[Any]],
        first: int,
        blocks: NDArray[np.int64] | None,
        rows: range,
        place: int,
    ) -> None:
        """Writes some rows of a piece to rows [place, …) of the window.

        Args:
            columns: of the row group, (group rows,) or (group rows, length) each.
            first: the row group's row at which the piece begins.
            blocks: the order of the piece's blocks; None where they keep it.
            rows: the rows, by their place in the order of the piece.
        """
        ordered = 0 if blocks is None else min(max(len(blocks) * BLOCK_ROWS, rows.start), rows.stop)
        start = rows.start
        while start < rows.stop:
            end = ordered if start < ordered else rows.stop
            stop = min(start + _CHUNK_ROWS, end)
            if blocks is not None and start < ordered:
                self._chunk_of_blocks(columns, first, blocks, start, stop, place)
            else:
                self._chunk(columns, first + start, first + stop, place)
            place += stop - start
            start = stop

    def _chunk_of_blocks(
        self,
        columns: Sequence[NDArray[Any]],
        first: int,
        blocks: NDArray[np.int64],
        start: int,
        stop: int,
        place: int,
    ) -> None:
        chosen = blocks[start // BLOCK_ROWS : -(-stop // BLOCK_ROWS)]
        end = first + len(blocks) * BLOCK_ROWS
        for column, into in zip(columns, self._scratch(len(chosen) * BLOCK_ROWS), strict=True):
            shape = (-1, BLOCK_ROWS * (1 if column.ndim == 1 else column.shape[1]))
            # `clip` spares numpy a copy of `out`; no block is out of range.
            np.take(column[first:end].reshape(shape), chosen, axis=0, out=into.reshape(shape), mode="clip")
        self._turn(start % BLOCK_ROWS, stop - start, place)

    def _chunk(self, columns: Sequence[NDArray[Any]], start: int, stop: int, place: int) -> None:
        for column, into in zip(columns, self._scratch(stop - start), strict=True):
            into[...] = column[start:stop]
        self._turn(0, stop - start, place)

    def _scratch(self, rows: int) -> list[NDArray[Any]]:
        return [*self._singles[:, :rows], *(each[:rows] for each in self._lists)]

    def _turn(self, skipped: int, rows: int, place: int) -> None:
        """Turns the scratch columns, but for their first `skipped` rows, into rows of the window."""
        here, there = slice(skipped, skipped + rows), slice(place, place + rows)
        width = len(self._singles)
        self._rows[there, :width] = self._singles[:, here].T
        for each in self._lists:
            self._rows[there, width : width + each.shape[1]] = each[here]
            width += each.shape[1]

    def deliver(self, rows: int, order: NDArray[np.int64] | None, into: NDArray[Any]) -> None:
        """Copies the window's first `rows` rows to a shard's places in a pool, in this order; the places left get zeros.

        Args:
            into: (steps, rows of the shard in a batch, width).
        """
        shuffled = self._rows
        if order is not None:
            shuffled = self._shuffled
            np.take(self._rows, order, axis=0, out=shuffled[:rows], mode="clip")
        shuffled[rows:] = 0
        into[...] = shuffled.reshape(into.shape)
