"""Columns in, rows out: what turns the columns of row groups into the shuffled, row-major rows of a pool.

Here with NumPy alone; compiled.py does the same with compiled code, where that was built.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from training.data import native_library
from training.data.row_order import BLOCK_ROWS

# Rows that are turned from columns into rows at a time: what 4096 rows of 40 columns take stays within a core's cache.
_CHUNK_ROWS = 4096


class Source(Protocol):
    """Columns of one dtype of a row group, whose rows can be written anywhere."""

    def turn(
        self,
        first: int,
        blocks: NDArray[np.int64] | None,
        rows: range,
        places: NDArray[np.int64],
        into: NDArray[Any],
    ) -> None:
        """Writes some rows of a piece of the row group; several threads may at once, to different places.

        Args:
            first: the row group's row at which the piece begins.
            blocks: the order of the piece's blocks; None where they keep it.
            rows: the rows, by their place in the order of the piece.
            places: (len(rows),) the row of `into` that each becomes.
            into: (any, width) of the columns' dtype, contiguous.
        """


def source_of(columns: Sequence[NDArray[Any]]) -> Source:
    """Columns of one dtype of 4 bytes: those of one number a row, (group rows,), then lists, (group rows, length)."""
    return native_library.CompiledSource(columns) if native_library.library() else NumpySource(columns)


def places(rows: int, order: NDArray[np.int64] | None, own: int, batch: int, first: int) -> NDArray[np.int64]:
    """(rows,) the row of a pool that each row of a shard's window comes to.

    Args:
        rows: of the window.
        order: (rows,) which row stands at each place of the shard's; None where rows keep their order.
        own: rows of the shard in a batch.
        batch: rows of a batch.
        first: where the shard's rows begin in it.
    """
    if native_library.library():
        return native_library.places(rows, order, own, batch, first)
    return numpy_places(rows, order, own, batch, first)


def numpy_places(
    rows: int, order: NDArray[np.int64] | None, own: int, batch: int, first: int
) -> NDArray[np.int64]:
    """As `places`."""
    step, within = np.divmod(np.arange(rows, dtype=np.int64), own)
    found = step * batch + first + within
    if order is None:
        return found
    moved = np.empty_like(found)
    moved[order] = found
    return moved


class NumpySource:
    """See Source."""

    def __init__(self, columns: Sequence[NDArray[Any]]) -> None:
        self._columns = columns

    def turn(
        self,
        first: int,
        blocks: NDArray[np.int64] | None,
        rows: range,
        places: NDArray[np.int64],
        into: NDArray[Any],
    ) -> None:
        start = rows.start
        for chosen, skipped, count in _chunks(blocks, rows):
            turned = np.empty((count, into.shape[1]), dtype=into.dtype)
            width = 0
            for column in self._columns:
                taken = _take(column[first:], chosen)[skipped : skipped + count]
                held = 1 if column.ndim == 1 else column.shape[1]
                turned[:, width : width + held] = taken.reshape(count, held)
                width += held
            into[places[start - rows.start : start - rows.start + count]] = turned
            start += count


def _chunks(
    blocks: NDArray[np.int64] | None, rows: range
) -> Iterator[tuple[NDArray[np.int64] | slice, int, int]]:
    """Parts of `rows`: the blocks, or rows of the piece, that hold one; its first row among them; how many rows it has."""
    ordered = 0 if blocks is None else min(max(len(blocks) * BLOCK_ROWS, rows.start), rows.stop)
    start = rows.start
    while start < rows.stop:
        stop = min(start + _CHUNK_ROWS, ordered if start < ordered else rows.stop)
        if blocks is not None and start < ordered:
            chosen = blocks[start // BLOCK_ROWS : -(-stop // BLOCK_ROWS)]
            yield chosen, start % BLOCK_ROWS, stop - start
        else:
            yield slice(start, stop), 0, stop - start
        start = stop


def _take(column: NDArray[Any], chosen: NDArray[np.int64] | slice) -> NDArray[Any]:
    if isinstance(chosen, slice):
        return column[chosen]
    whole = len(column) // BLOCK_ROWS * BLOCK_ROWS
    blocks = column[:whole].reshape(-1, BLOCK_ROWS, *column.shape[1:])
    return blocks.take(chosen, axis=0).reshape(-1, *column.shape[1:])
