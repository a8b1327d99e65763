"""Boost: changes the ranking scores of items with certain attribute values. The published scores stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

import torch
from torch import Tensor


@dataclass(frozen=True)
class Boosted:
    """The boost of each item: a factor, or a number that is added to the log-odds.

    Attributes:
        amounts: (N,) float64: the boost of each item index. Items without a boost have factor 1, or log-odds
            0.
        by: whether `amounts` are factors or log-odds.
    """

    amounts: Tensor
    by: Literal["factor", "log_odds"]

    def keys(self, scores: Tensor, items: Tensor) -> Tensor:
        """Returns the ranking scores of items, float32, in the shape of `scores`.

        With a factor f, the ranking score of an item with probability p is p × f. With log-odds x, the amount
        x is added to the log-odds of p, so the ranking score is p·eˣ / (1 − p + p·eˣ). If x is 0, the ranking
        score is p. The computation uses float64.

        Args:
            scores: probabilities.
            items: item indices, in the shape of `scores`.
        """
        amounts, probability = self.amounts[items], scores.double()
        if self.by == "factor":
            return (probability * amounts).float()
        if self.by == "log_odds":
            odds = probability * amounts.exp()
            return torch.where(amounts == 0, scores, (odds / (1 - probability + odds)).float())
        assert_never(self.by)
