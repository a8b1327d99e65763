"""Maps ids to the ranks that hold their rows, and rows of a rank to rows of the unsharded table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor, nn

from training.embeddings.placement import Placement
from training.embeddings.rows import Groups, group_and_count


class Router(nn.Module):
    """Computes the key of an id: owner * span + index of the id's row in the owner's matrix.

    The owner is the rank that holds the id's row. For rows that all R ranks hold, the owner is defined as R.
    So sorted keys are sorted by owner, and the keys of rows that all ranks hold come last.

    Attributes:
        span: number of rows of the largest matrix of any rank.
        end: all keys are in [0, end).
        tiered: whether some rows are in host memory.
        hot: (C,), for each feature, the number of its first ids whose rows are on a device.
    """

    def __init__(self, placement: Placement, rank: int) -> None:
        super().__init__()
        ranks, features = placement.ranks, placement.features
        self.ranks = ranks
        self.tiered = placement.hot is not None
        self.span = max(1, *(placement.end_of(owner) for owner in range(ranks)))
        self.end = (ranks + 1) * self.span
        places = [[0] * len(features) for _ in range(ranks + 1)]
        tail_places = [[0] * len(features) for _ in range(ranks + 1)]
        for owner in range(ranks):
            for block in placement.blocks(owner):
                row = ranks if features[block.feature].kind == "replicated" else owner
                if self.tiered and block.place >= placement.first_tail:
                    # This owner has block.first // block.step hot rows before the tail.
                    tail_places[row][block.feature] = block.place - block.first // block.step
                else:
                    places[row][block.feature] = block.place
        blocks = sorted(placement.blocks(rank), key=lambda block: block.place)
        whole = {block.feature: block for block in replace(placement, hot=None).blocks(rank)}
        starts = list(accumulate(placement.cardinalities, initial=0))
        self._register("ends", [self.span * (owner + 1) for owner in range(ranks + 1)])
        self._register("places", [place for row in places for place in row])  # (R + 1, C), flat
        self._register("tail_places", [place for row in tail_places for place in row])
        self._register("hot", placement.hot or placement.cardinalities)
        self._register("replicated_places", places[ranks])
        self._register("replicated_tail_places", tail_places[ranks])
        self._register("features", range(len(features)))
        self._register("owners", [ranks if it.kind == "replicated" else it.rank for it in features])
        self._register("row_wise", [it.kind == "row_wise" for it in features])
        self._register("strides", [ranks if it.kind == "row_wise" else 1 for it in features])
        self._register("block_ends", [block.place + block.rows for block in blocks])
        self._register("block_places", [block.place for block in blocks])
        self._register("block_steps", [block.step for block in blocks])
        self._register("block_starts", [starts[block.feature] + block.first for block in blocks])
        untiered = [
            whole[block.feature].place + (block.first - whole[block.feature].first) // block.step
            for block in blocks
        ]
        self._register("block_untiered", untiered)

    ends: Tensor
    places: Tensor
    tail_places: Tensor
    hot: Tensor
    replicated_places: Tensor
    replicated_tail_places: Tensor
    block_untiered: Tensor
    features: Tensor
    owners: Tensor
    row_wise: Tensor
    strides: Tensor
    block_ends: Tensor
    block_places: Tensor
    block_steps: Tensor
    block_starts: Tensor

    def _register(self, name: str, values: Sequence[int]) -> None:
        """Registers a buffer that moves with the module between devices and is not saved in the state."""
        self.register_buffer(name, torch.tensor(list(values), dtype=torch.int64), persistent=False)

    def keys(self, ids: Tensor, features: Tensor) -> Tensor:
        """Returns the int64 keys of ids.

        `features` contains the index of each id's feature. Its shape must be broadcastable to the shape of
        `ids`.
        """
        first_owner, row_wise = self.owners[features], self.row_wise[features]
        owner = torch.where(row_wise.bool(), (ids + first_owner) % self.ranks, first_owner)
        index = owner * len(self.owners) + features
        place = self.places[index]
        if self.tiered:
            place = torch.where(ids < self.hot[features], place, self.tail_places[index])
        return owner * self.span + place + ids // self.strides[features]

    def replicated_rows(self, ids: Tensor, features: Tensor) -> Tensor:
        """Returns the rows of ids in this rank's matrix, if every rank holds all rows. See `keys`."""
        place = self.replicated_places[features]
        if self.tiered:
            place = torch.where(ids < self.hot[features], place, self.replicated_tail_places[features])
        return ids + place

    def group(self, keys: Tensor) -> tuple[Groups, list[int]]:
        """Groups elements by their keys (N,), and returns how many distinct keys each owner has.

        There are R + 1 counts: one per rank, and then one for the rows that all ranks hold.
        """
        return group_and_count(keys, self.ends, self.end)

    def unsharded_rows(self, rows: Tensor) -> Tensor:
        """Converts row indices of this rank's matrix to row indices of the unsharded table, (N,) int64."""
        block = torch.searchsorted(self.block_ends, rows, right=True)
        return self.block_starts[block] + (rows - self.block_places[block]) * self.block_steps[block]

    def untiered_rows(self, rows: Tensor) -> Tensor:
        """Converts indices of this rank's rows to the indices that these rows would have without a tail."""
        block = torch.searchsorted(self.block_ends, rows, right=True)
        return self.block_untiered[block] + rows - self.block_places[block]
