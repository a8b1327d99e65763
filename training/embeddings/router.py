"""The way from a feature's id to the rank and row that hold it, and back to the row of the unsharded table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from training.embeddings.placement import Placement


class Router(nn.Module):
    """A key is owner * span + row in the owner's matrix; rows that every rank holds have R as their owner.

    So sorted keys are sorted by owner, those that need no exchange last.

    Attributes:
        span: rows of the largest matrix.
        end: keys lie in [0, end).
    """

    def __init__(self, placement: Placement, rank: int) -> None:
        super().__init__()
        ranks = placement.ranks
        self.ranks = ranks
        self.span = max(1, *(placement.rows_of(each) for each in range(ranks)))
        self.end = (ranks + 1) * self.span
        places = [[0] * len(placement.cardinalities) for _ in range(ranks + 1)]
        for each in range(ranks):
            for block in placement.blocks(each):
                shared = placement.homes[block.feature].kind == "replicated"
                places[ranks if shared else each][block.feature] = block.place
        blocks = placement.blocks(rank)
        starts = list(accumulate(placement.cardinalities, initial=0))
        homes = placement.homes
        self._keep("places", [place for row in places for place in row])  # (R + 1, C), flat
        self._keep("shared_places", places[ranks])
        self._keep("features", range(len(homes)))
        self._keep("owners", [ranks if each.kind == "replicated" else each.rank for each in homes])
        self._keep("spread", [each.kind == "row_wise" for each in homes])
        self._keep("strides", [ranks if each.kind == "row_wise" else 1 for each in homes])
        self._keep("block_ends", [each.place + each.rows for each in blocks])
        self._keep("block_places", [each.place for each in blocks])
        self._keep("block_steps", [each.step for each in blocks])
        self._keep("block_starts", [starts[each.feature] + each.first for each in blocks])

    places: Tensor
    shared_places: Tensor
    features: Tensor
    owners: Tensor
    spread: Tensor
    strides: Tensor
    block_ends: Tensor
    block_places: Tensor
    block_steps: Tensor
    block_starts: Tensor

    def _keep(self, name: str, values: Sequence[int]) -> None:
        """A buffer moves with the module from device to device; these are no state."""
        self.register_buffer(name, torch.tensor(list(values), dtype=torch.int64), persistent=False)

    def keys(self, ids: Tensor, features: Tensor) -> Tensor:
        """The keys of ids, int64 of any shape that `features`, the index of each id's feature, broadcasts to."""
        own, spread = self.owners[features], self.spread[features]
        owner = torch.where(spread.bool(), (ids + own) % self.ranks, own)
        place = self.places[owner * len(self.owners) + features]
        return owner * self.span + place + ids // self.strides[features]

    def counts(self, keys: Tensor) -> list[int]:
        """Of ascending keys, how many are of each rank, and last how many of every rank: R + 1 numbers."""
        ends = torch.arange(1, self.ranks + 2, device=keys.device) * self.span
        found = torch.searchsorted(keys, ends)
        return found.diff(prepend=found.new_zeros(1)).tolist()

    def in_unsharded(self, rows: Tensor) -> Tensor:
        """(N,) int64, where the rows (N,) of this rank's matrix would lie in one that holds all rows of all features."""
        block = torch.searchsorted(self.block_ends, rows, right=True)
        return self.block_starts[block] + (rows - self.block_places[block]) * self.block_steps[block]
