"""Counts how many lookups of a training read rows in the device's memory.

Notation: B rows of a batch, W columns of ids.
"""

from __future__ import annotations

import torch
from torch import Tensor

from storage.feature_spec import PAD_ID


class HotShare:
    """The number of lookups since the last call of `take`, and how many of them were hot. No call waits.

    Args:
        num_single: number of columns that have one id. In all other columns, PAD_ID is no lookup.
    """

    def __init__(self, num_single: int) -> None:
        self._num_single = num_single
        self._counts: Tensor | None = None

    @torch.no_grad()
    def add(self, ids: Tensor, hot: Tensor) -> None:
        """Counts the lookups of `ids` (B, W).

        Ids of a column are hot if they are smaller than the column's number in `hot` (W,).
        """
        looked_up = ids != PAD_ID
        looked_up[:, : self._num_single] = True
        self._count((looked_up & (ids < hot)).sum(), looked_up.sum())

    @torch.no_grad()
    def add_ids(self, ids: Tensor, hot: Tensor) -> None:
        """Counts the lookups of `ids` (N,), of which those below the scalar `hot` are hot."""
        is_hot = ids < hot
        self._count(is_hot.sum(), torch.ones_like(is_hot).sum())

    def _count(self, hot: Tensor, lookups: Tensor) -> None:
        counts = torch.stack([hot, lookups])
        self._counts = counts if self._counts is None else self._counts + counts

    def take(self, device: torch.device) -> Tensor:
        """Returns and clears the counts: (2,) int64, hot lookups and all lookups."""
        counts, self._counts = self._counts, None
        return torch.zeros(2, dtype=torch.int64, device=device) if counts is None else counts
