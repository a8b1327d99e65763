"""Boost: changes the ranking score of items with certain attribute values, but not the published scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Boosted:
    """The boost of each item.

    Attributes:
        amounts: (N,) float64 by item index: factors or log-odds. Items without a boost have factor 1 or
            log-odds 0.
        by: whether `amounts` are factors or log-odds.
    """

    amounts: Tensor
    by: Literal["factor", "log_odds"]

    def keys(self, scores: Tensor, items: Tensor) -> Tensor:
        """Ranking scores: float32 in the shape of `scores` (probabilities) and `items` (indices).

        With a factor f, the ranking score of an item with probability p is p × f. With log-odds x, x is added
        to the log-odds of p, so the ranking score is p·eˣ / (1 − p + p·eˣ). Items with x = 0 keep their
        score. The computation uses float64.
        """
        amounts, probability = self.amounts[items], scores.double()
        if self.by == "factor":
            return (probability * amounts).float()
        odds = probability * amounts.exp()
        return torch.where(amounts == 0, scores, (odds / (1 - probability + odds)).float())
