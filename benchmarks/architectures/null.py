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
    """What is returned for every row: zero, or a number that its ids decide."""

    returns: Literal["zero", "hash"] = "zero"


class Null(nn.Module):
    """Logits (B,) float32 without a weight, of dense (B, D) and categorical (B, W)."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.hashes = settings.returns == "hash"

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        return self.logits(self.share(categorical))

    def factorize(self, sides: Any, dtype: torch.dtype) -> FactorizedNull:
        """The factorization for any sides and dtype."""
        return FactorizedNull(self)

    def share(self, categorical: Tensor) -> Tensor:
        """(B,) int64: what rows add to the hash; ids that are 0 add nothing."""
        if not self.hashes:
            return torch.zeros(len(categorical), dtype=torch.int64, device=categorical.device)
        return categorical[:, 0] * FIRST_FACTOR + categorical[:, -1] * LAST_FACTOR

    def logits(self, shares: Tensor) -> Tensor:
        """float32 of sums of shares, of any shape."""
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
        """((R,) int64,), the shares of rows."""
        return (self._model.share(categorical),)

    def pair_logits(self, users: tuple[Tensor, ...], items: tuple[Tensor, ...]) -> Tensor:
        """Logits (U, I) of shares (U,) and (1|U, I)."""
        return self._model.logits(users[0].unsqueeze(1) + items[0])


def build(settings: Settings, inputs: Inputs) -> Null:
    return Null(settings)
