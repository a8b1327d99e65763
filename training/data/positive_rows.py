"""The positive rows of a batch, and where their items are in the catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from training.data.batch import Batch
from training.data.hashing import mix
from training.data.item_catalogue import ItemCatalogue


@dataclass(frozen=True)
class PositiveRows:
    """The P positive rows of a rank's batch. A batch without any has one row of weight zero.

    Attributes:
        rows: (P,) int64 ascending, the indices of the rows.
        weight: the factor of the weights of these rows: 1, or 0 if there is no positive row.
        of_shard: for each shard of the rank, its number of rows.
    """

    rows: Tensor
    weight: float
    of_shard: Sequence[int]


def find_positive_rows(batch: Batch, num_shards: int) -> PositiveRows:
    """Returns the positive rows of a batch that consists of the rows of `num_shards` shards, in order."""
    rows = ((batch.labels == 1) & (batch.weights > 0)).nonzero().flatten()
    weight = 1.0 if len(rows) else 0.0
    if not len(rows):
        rows = torch.zeros(1, dtype=torch.int64, device=batch.labels.device)
    of_shard = torch.bincount(rows // (len(batch.labels) // num_shards), minlength=num_shards)
    return PositiveRows(rows, weight, of_shard.tolist())


class ItemPositions:
    """Finds the positions of items in a catalogue."""

    def __init__(self, catalogue: ItemCatalogue) -> None:
        day_of_item = catalogue.days.repeat_interleave(catalogue.starts.diff())
        self._sorted, self._order = mix(catalogue.items + mix(day_of_item)).sort()

    def find(self, items: Tensor, days: Tensor) -> Tensor:
        """Returns the position of each item on the day of its row, (P,) int64.

        Args:
            items: (P,) int64, hashes of item keys. Each item must have a train row on its day.
            days: (P,) int64, days since 1970-01-01.
        """
        place = torch.searchsorted(self._sorted, mix(items + mix(days)))
        return self._order[place.clamp(max=len(self._order) - 1)]
