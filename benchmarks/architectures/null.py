"""An architecture without weights, whose logits are 0. It is used to measure only the transport of rows.

With the setting `returns: hash`, the logit of a pair is a hash of the first id of the user and the last id of
the item. Pairs then have different scores, so they can be ranked without the work of a model. The
architecture has a factorization, so lists are scored without joined rows. benchmarks/scoring_daemon.py makes
the architecture available to Python workers.
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
    """The setting of the architecture: all logits are 0, or each logit is a hash of ids (see the module's docstring)."""

    returns: Literal["zero", "hash"] = "zero"


class Null(nn.Module):
    """A model without weights. It computes logits (B,) float32 of B rows, as the module describes."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.hashes = settings.returns == "hash"

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        return self.logits(self.share(categorical))

    def factorize(self, sides: Any, dtype: torch.dtype) -> FactorizedNull:
        """Returns the factorization, which is the same for all scopes of features and all dtypes."""
        return FactorizedNull(self)

    def share(self, categorical: Tensor) -> Tensor:
        """Returns one integer per row, shape (B,) int64, from which `logits` computes the row's logit.

        The integer is a weighted sum of the first and the last id of the row. It is 0 if all logits are 0.
        """
        if not self.hashes:
            return torch.zeros(len(categorical), dtype=torch.int64, device=categorical.device)
        return categorical[:, 0] * FIRST_FACTOR + categorical[:, -1] * LAST_FACTOR

    def logits(self, shares: Tensor) -> Tensor:
        """Returns one float32 logit for each element of `shares`, which contains integers from `share`."""
        if not self.hashes:
            return torch.zeros(shares.shape, device=shares.device)
        return (shares % MODULUS).float() * (8 / MODULUS) - 4


class FactorizedNull:
    """The factorization of `Null`: first one integer per user and per item, then one logit per pair.

    The logit of a pair is computed from the sum of the user's integer and the item's integer.
    """

    def __init__(self, model: Null) -> None:
        self._model = model

    def side_part(self, side: Side, dense: Tensor, categorical: Tensor) -> tuple[Tensor, ...]:
        """Returns a tuple with one tensor: the integers (R,) int64 of R users or of R items."""
        return (self._model.share(categorical),)

    def pair_logits(self, users: tuple[Tensor, ...], items: tuple[Tensor, ...]) -> Tensor:
        """Returns the logits (U, I) of U users and I items.

        Args:
            users: the integers (U,) of the users, from `side_part`.
            items: the integers of the items: (1, I), or (U, I) if each user has other items.
        """
        return self._model.logits(users[0].unsqueeze(1) + items[0])


def build(settings: Settings, inputs: Inputs) -> Null:
    return Null(settings)
