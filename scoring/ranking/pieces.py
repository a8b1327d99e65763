"""Cuts lists of items into pieces of equal width, so that a device can score many lists at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scoring.ranking.pairs import Indices


@dataclass(frozen=True)
class Pieces:
    """Several lists of items, cut into pieces of equal width. A piece contains consecutive items of one list.

    T is the number of pieces. The last piece of a list may have empty cells.

    Attributes:
        list: (T,) for each piece, the index of the list that it comes from.
        place: (T,) for each piece, its position among the pieces of the same list, from 0.
        index: (T, width) the positions of the cells in the array of all items. Undefined in empty cells.
        items: (T, width) item indices; 0 in empty cells.
        filled: (T, width) bool, whether the cell contains an item.
    """

    list: Indices
    place: Indices
    index: Indices
    items: Indices
    filled: NDArray[np.bool_]

    @classmethod
    def of(cls, lengths: Indices, starts: Indices, items: Indices) -> Pieces:
        """Cuts lists of items into pieces of equal width. The function piece_width() chooses the width.

        Args:
            lengths: (L,) the length of each list.
            starts: (L,) the index in `items` at which each list starts.
            items: the item indices of all lists.
        """
        width = piece_width(lengths)
        counts = -(-lengths // width)
        of_list = np.repeat(np.arange(len(lengths)), counts)
        place = np.arange(len(of_list)) - np.repeat(np.cumsum(counts) - counts, counts)
        within = place[:, None] * width + np.arange(width)  # (T, width)
        filled = within < lengths[of_list, None]
        index = np.minimum(starts[of_list, None] + within, max(len(items) - 1, 0))
        return cls(of_list, place, index, np.where(filled, items[index], 0), filled)


_PIECE_WIDTHS = (256, 128, 64, 32, 16, 8, 4, 2)
# Empty cells are scored in vain. Their number is at most this share of the number of filled cells.
_EMPTY_SHARE = 0.125


def piece_width(lengths: Indices) -> int:
    """Returns the width of the pieces into which lists of these lengths are cut.

    A piece has `width` cells, which contain consecutive items of one list; the last piece of a list may have
    empty cells. The width is a power of two and at most 256. It is the largest width for which there is at
    most one empty cell per eight filled cells. If no larger width satisfies this rule, the width is 1.
    """
    total = int(lengths.sum())
    for width in _PIECE_WIDTHS:
        if int((-(-lengths // width)).sum()) * width <= (1 + _EMPTY_SHARE) * total:
            return width
    return 1
