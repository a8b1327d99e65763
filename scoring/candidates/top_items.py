"""Finds, for each user, the n items with the highest scores among the items that are not excluded.

TopItems computes the scores of one block of consecutive items at a time. Then it merges the best items of the
block with the best items of the earlier blocks. The result is exact and does not depend on the size of the
blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from conf.errors import DataError
from scoring.ranking.top_k import NO_CANDIDATE, ranking_keys, split_keys, top_keys
from scoring.requests import LISTED

# A function (first, last) that returns the float32 scores of these items, without the item `last`, for the U
# users of a micro-batch: (U, last - first).
BlockScores = Callable[[int, int], Tensor]

# Number of scores in a block. On a CPU, a block and its ranking keys fit into the caches. On a GPU, a block
# is large enough to keep the device busy.
_CPU_SCORES = 1 << 20
_GPU_SCORES = 1 << 25
# Width of the first block of items, in multiples of n. Each further block is twice as wide as the previous
# one. So about the same number of items enters a list from each block.
_FIRST_BLOCKS = 4
# Number of users whose lists are computed together.
MICRO_BATCH_USERS = 256
_NO_KEYS = torch.empty(0, dtype=torch.int64)


def scores_in_a_block(device: torch.device) -> int:
    """Returns the maximum number of scores that should be on a device at the same time."""
    return _GPU_SCORES if device.type == "cuda" else _CPU_SCORES


@dataclass(frozen=True)
class TopItems:
    """Selects the best items of users.

    Attributes:
        scorer: name of the model or source that computes the scores, for error messages, such as `retriever
            1a2b`.
        num_items: number of items N. The item numbers below are 0 … N - 1.
        n: maximum number of items in a list.
        max_scores: maximum number of scores in the device's memory at the same time.
    """

    scorer: str
    num_items: int
    n: int
    max_scores: int

    def best(
        self, scores_of: BlockScores, excluded: tuple[Tensor, Tensor], users: Sequence[object] | pa.Array
    ) -> Tensor:
        """Returns the ranking keys of the n best items of each user, shape (U, n), on the scores' device.

        If a user has fewer items, NO_CANDIDATE fills the end of the row. A ranking key combines the score and
        the item number (scoring/ranking/top_k.py): items with equal scores are ordered by their number.

        Args:
            scores_of: computes the scores of a block of items.
            excluded: row numbers and item numbers of the excluded pairs, on the scores' device.
            users: the keys of the U users, for error messages.

        Raises:
            DataError: a score is NaN. The message names the user and the item.
        """
        row, item = excluded
        best = torch.full((len(users), self.n), NO_CANDIDATE, dtype=torch.int64, device=row.device)
        first, width = 0, min(_FIRST_BLOCKS * self.n, self._width(len(users)))
        while first < self.num_items:
            last = min(first + width, self.num_items)
            scores = scores_of(first, last)  # (U, last - first)
            if scores.sum().isnan():
                self._require_numbers(scores, first, users)
            # An item with a lower score than the last item of a full list cannot enter the list. An item with
            # an equal score may enter it, if its number is smaller.
            lowest = split_keys(best[:, -1:])[0]
            better = scores >= lowest.where(best[:, -1:] != NO_CANDIDATE, -torch.inf)
            in_block = (item >= first) & (item < last)
            better[row[in_block], item[in_block] - first] = False
            best = top_keys(torch.cat([best, _keys_of(scores, better, first)], dim=1), self.n)
            first, width = last, min(2 * width, self._width(len(users)))
        return best

    def _width(self, users: int) -> int:
        """Returns the number of items whose scores for `users` users are computed together."""
        return max(1, self.max_scores // max(users, 1))

    def _require_numbers(self, scores: Tensor, first: int, users: Sequence[object] | pa.Array) -> None:
        """Raises DataError if a score is NaN. The message names the user and the item."""
        wrong = scores.isnan()
        if wrong.any():
            user, column = wrong.nonzero()[0].tolist()
            raise DataError(
                f"{self.scorer}: the dot product of user {users[user]} and "
                f"the item with index {first + column} is NaN",
                "look for NaN or infinite features of this user and item, or a diverged model; train again",
            )


def batch_of_lists(
    users: pa.Array, parts: Sequence[Tensor], items: NDArray[np.int32] | None = None
) -> pa.RecordBatch:
    """Returns the lists of users and the scores of their items, as a batch with the schema LISTED.

    Args:
        users: the keys of the users.
        parts: the ranking keys that TopItems.best returned, for consecutive micro-batches of the users.
        items: (N,) the item index of each item number; None if each item number is an item index.
    """
    parts = [part.cpu() for part in parts]
    lengths = np.concatenate([[0], *((part != NO_CANDIDATE).sum(dim=1).numpy() for part in parts)])
    scores, numbers = split_keys(torch.cat([_NO_KEYS, *(part[part != NO_CANDIDATE] for part in parts)]))
    values = numbers.int().numpy()
    listed = pa.array(values if items is None else items[values], pa.int32())
    offsets = pa.array(np.cumsum(lengths).astype(np.int32))
    columns = [pa.ListArray.from_arrays(offsets, column) for column in (listed, pa.array(scores.numpy()))]
    return pa.RecordBatch.from_arrays([users, *columns], schema=LISTED)


def _keys_of(scores: Tensor, chosen: Tensor, first: int) -> Tensor:
    """Returns the ranking keys of some cells of a matrix of scores.

    Only the cells that `chosen` marks get a key. When the lists of the users are full, few cells are marked,
    so this saves work. Row u of the result has the keys of the marked cells in row u. The result is as wide
    as the largest number of marked cells in a row, and NO_CANDIDATE fills shorter rows.

    Args:
        scores: (U, width) scores of users and items.
        chosen: (U, width) bool.
        first: the item number of the first column.
    """
    row, column = chosen.nonzero(as_tuple=True)
    counts = chosen.sum(dim=1)
    position = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    keys = torch.full((len(chosen), int(counts.max())), NO_CANDIDATE, dtype=torch.int64, device=row.device)
    keys[row, position] = ranking_keys(scores[row, column], column + first)
    return keys
