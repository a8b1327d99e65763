"""Boost: changes the ranking score of items with some value of an attribute. Published scores stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Boosted:
    """The boost of each item.

    Attributes:
        amounts: (N,) float64 by item index: factor or log-odds; 1 or 0 for items without a boost.
        by: what `amounts` are.
    """

    amounts: Tensor
    by: Literal["factor", "log_odds"]

    def keys(self, scores: Tensor, items: Tensor) -> Tensor:
        """Ranking scores: float32 in the shape of `scores` (probabilities) and `items` (indices).

        With a factor f, the score is p × f. With log-odds x, it is the probability whose log-odds are x more:
        p·eˣ / (1 − p + p·eˣ). Items with x = 0 keep their score. Computed in float64.
        """
        amounts, probability = self.amounts[items], scores.double()
        if self.by == "factor":
            return (probability * amounts).float()
        odds = probability * amounts.exp()
        return torch.where(amounts == 0, scores, (odds / (1 - probability + odds)).float())
