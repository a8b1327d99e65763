"""An architecture that computes nothing, so that a scoring job measures only the transport of rows.

With `returns: hash` the logit of a pair depends on its first and its last id. Pairs can then be ranked
without a model. The architecture has a factorization, so lists are scored without rows of pairs.
benchmarks/scoring_daemon.py makes it available to Python workers.
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
    """The setting `returns`: zero for every row, or a hash of its ids."""

    returns: Literal["zero", "hash"] = "zero"


class Null(nn.Module):
    """Returns logits (B,) float32 of dense (B, D) and categorical (B, W). It has no weights."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.hashes = settings.returns == "hash"

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        return self.logits(self.share(categorical))

    def factorize(self, sides: Any, dtype: torch.dtype) -> FactorizedNull:
        """Returns the factorization, which is the same for all sides and dtypes."""
        return FactorizedNull(self)

    def share(self, categorical: Tensor) -> Tensor:
        """Returns the share (B,) int64 of each row in the hash. Ids that are 0 add nothing."""
        if not self.hashes:
            return torch.zeros(len(categorical), dtype=torch.int64, device=categorical.device)
        return categorical[:, 0] * FIRST_FACTOR + categorical[:, -1] * LAST_FACTOR

    def logits(self, shares: Tensor) -> Tensor:
        """Returns float32 logits of sums of shares. Any shape is allowed."""
        if not self.hashes:
            return torch.zeros(shares.shape, device=shares.device)
        return (shares % MODULUS).float() * (8 / MODULUS) - 4


class FactorizedNull:
    """The factorization of the model: a share of each user, a share of each item, and the logits of their
    sums.
    """

    def __init__(self, model: Null) -> None:
        self._model = model

    def side_part(self, side: Side, dense: Tensor, categorical: Tensor) -> tuple[Tensor, ...]:
        """Returns the shares of rows, ((R,) int64,)."""
        return (self._model.share(categorical),)

    def pair_logits(self, users: tuple[Tensor, ...], items: tuple[Tensor, ...]) -> Tensor:
        """Returns logits (U, I) of shares (U,) and (1|U, I)."""
        return self._model.logits(users[0].unsqueeze(1) + items[0])


def build(settings: Settings, inputs: Inputs) -> Null:
    return Null(settings)
