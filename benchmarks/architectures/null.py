"""An architecture without weights, whose logits are 0. It is used to measure only the transport of rows.

With the setting `returns: hash`, the logit of a pair is a hash of the first id of the user and the last id of
the item. Pairs then have different scores, so they can be ranked without the work of a model. The
architecture has a factorization, so lists are scored without joined rows. benchmarks/scoring_daemon.py makes
it available to Python workers.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from conf.types import Strict
from training.models.factorization import Side
from training.models.inputs import Inputs

# Coprime to the modulus, so that neighbouring ids get distant logits.
FIRST_FACTOR, LAST_FACTOR, MODULUS = 7_919, 40_503, 65_537


class Settings(Strict):
    """The setting of the architecture: every logit is zero, or a hash of the row's ids."""

    returns: Literal["zero", "hash"] = "zero"


class Null(nn.Module):
    """Computes logits (B,) float32 from dense (B, D) and categorical (B, W). It has no weights."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.hashes = settings.returns == "hash"

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        return self.logits(self.share(categorical))

    def factorize(self, sides: Any, dtype: torch.dtype) -> FactorizedNull:
        """Returns the factorization, which is the same for all scopes of features and all dtypes."""
        return FactorizedNull(self)

    def share(self, categorical: Tensor) -> Tensor:
        """Returns the number (B,) int64 that each row adds to the hash. An id of 0 adds nothing."""
        if not self.hashes:
            return torch.zeros(len(categorical), dtype=torch.int64, device=categorical.device)
        return categorical[:, 0] * FIRST_FACTOR + categorical[:, -1] * LAST_FACTOR

    def logits(self, shares: Tensor) -> Tensor:
        """Returns float32 logits, each computed from the sum of a user's and an item's number (`share`)."""
        if not self.hashes:
            return torch.zeros(shares.shape, device=shares.device)
        return (shares % MODULUS).float() * (8 / MODULUS) - 4


class FactorizedNull:
    """The factorization of `Null`.

    The parts of a user and of an item are the numbers that they add to the hash. The logit of a pair is
    computed from the sum of both numbers.
    """

    def __init__(self, model: Null) -> None:
        self._model = model

    def side_part(self, side: Side, dense: Tensor, categorical: Tensor) -> tuple[Tensor, ...]:
        """Returns a tuple with the numbers (R,) int64 that R users or items add to the hash."""
        return (self._model.share(categorical),)

    def pair_logits(self, users: tuple[Tensor, ...], items: tuple[Tensor, ...]) -> Tensor:
        """Returns logits (U, I) of the users' numbers (U,) and the items' numbers (1, I) or (U, I)."""
        return self._model.logits(users[0].unsqueeze(1) + items[0])


def build(settings: Settings, inputs: Inputs) -> Null:
    return Null(settings)
