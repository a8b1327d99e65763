"""Replaces ids by OOV_ID in training, so that a model can score users and items that no vocabulary contains.

The row of OOV_ID then learns the vector of an average user or item. The model also learns to predict from the
other features alone. The idea comes from DropoutNet (Volkovs, Yu and Poutanen, NeurIPS 2017), which leaves
out a user's or an item's latent vector in training.

Whether an id is replaced depends only on (seed, epoch, day, row id, column), and for a drawn item also on the
number of the draw. So the decision does not depend on the number of ranks, on the device, or on whether the
training was resumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from storage.feature_spec import NUM_RESERVED_IDS, OOV_ID, Feature
from training.data.batch import Batch, RowsOfStep
from training.data.row_keys import mix, split_row_keys, uniform

# This number is added to the seed, so that the choice of replaced ids and the draws of negatives are
# independent.
_STREAM = 0x756E6B6E6F776E


@dataclass(frozen=True)
class UnknownIds:
    """Chooses ids by a hash and replaces them by OOV_ID.

    The matrix of ids has W columns. Ids are replaced in C of these columns.

    All tensors are on the device of the training.

    Attributes:
        places: (C,) int64, the positions of the columns in the matrix of ids.
        numbers: (C,) int64, the number that each column contributes to the hash.
        shares: (C,) float64, the share of the ids of each column that is replaced.
        seed: seed of the draws.
    """

    places: Tensor
    numbers: Tensor
    shares: Tensor
    seed: int

    @classmethod
    def of(
        cls,
        shares: Mapping[str, float],
        seed: int,
        columns: Sequence[tuple[Feature, slice]],
        device: torch.device,
    ) -> UnknownIds:
        """Creates the object that replaces ids of some features.

        Args:
            shares: maps the name of a feature to its share (`train.unknown_share`).
            seed: seed of the draws.
            columns: the columns of each feature that is an id; see `training.models.inputs.id_columns`.
            device: the device of the ids.
        """
        chosen = [
            (place, shares[feature.name])
            for feature, where in columns
            if feature.name in shares
            for place in range(where.start, where.stop)
        ]
        places = torch.tensor([place for place, _ in chosen], dtype=torch.int64, device=device)
        of_columns = torch.tensor([share for _, share in chosen], dtype=torch.float64, device=device)
        return cls(places, places, of_columns, seed)

    def only(self, columns: Sequence[int]) -> UnknownIds:
        """Returns an object that replaces the same ids in a matrix of the columns `columns`, in order."""
        position = {column: place for place, column in enumerate(columns)}
        kept = [index for index, place in enumerate(self.places.tolist()) if place in position]
        moved = [position[int(self.places[index])] for index in kept]
        places = torch.tensor(moved, dtype=torch.int64, device=self.places.device)
        return UnknownIds(places, self.numbers[kept], self.shares[kept], self.seed)

    def keys_of_rows(self, row_keys: Tensor, epoch: int) -> Tensor:
        """Returns the hashes (R,) int64 by which `replace` chooses ids, from `row_keys` (R, 7) int32."""
        row_id, _, _, day = split_row_keys(row_keys)
        return self.keys(row_id, day, epoch)

    def keys(self, numbers: Tensor, days: Tensor, epoch: int) -> Tensor:
        """Returns hashes (R,) int64 of numbers (such as row ids), their days and the epoch; see `replace`."""
        return mix(mix(mix(numbers + mix(days)) + epoch) + self.seed + _STREAM)

    def keys_of_draws(self, keys: Tensor, draws: int) -> Tensor:
        """Returns a hash for each item drawn for a row, (R, draws) int64. `keys` (R,) are row hashes."""
        number = torch.arange(1, draws + 1, dtype=torch.int64, device=keys.device)
        return mix(keys[:, None] + number)

    def replace(self, ids: Tensor, keys: Tensor) -> Tensor:
        """Returns the ids, with OOV_ID in place of some of them.

        Reserved ids, such as padding, are not replaced.

        Args:
            ids: (…, W) int32.
            keys: (…) int64, a hash of each row.
        """
        if not len(self.places):
            return ids
        # The column's number is hashed first. `keys_of_draws` adds small numbers to the same keys, so small
        # numbers for columns could give the same sums.
        drawn = uniform(mix(keys.unsqueeze(-1) + mix(self.numbers))) < self.shares
        known = ids[..., self.places]
        result = ids.clone()
        result[..., self.places] = known.masked_fill(drawn & (known >= NUM_RESERVED_IDS), OOV_ID)
        return result


class RowsWithUnknownIds:
    """Replaces ids in the rows of a batch, before other parts of the step use the rows.

    Args:
        unknown: decides which ids are replaced.
        rows_of_step: selects the rows of the step from the changed batch; None if the step uses all rows.
    """

    def __init__(self, unknown: UnknownIds, rows_of_step: RowsOfStep | None = None) -> None:
        self._unknown = unknown
        self._rows_of_step = rows_of_step

    def expand(self, batch: Batch) -> Batch:
        """Returns the rows of a training step from a batch of the loader. See `RowsOfStep.expand`."""
        assert batch.row_keys is not None
        keys = self._unknown.keys_of_rows(batch.row_keys, batch.epoch)
        changed = replace(batch, categorical=self._unknown.replace(batch.categorical, keys))
        if self._rows_of_step is None:
            return replace(changed, row_keys=None)
        return self._rows_of_step.expand(changed)
