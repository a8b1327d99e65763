"""Boost: the ranking key of items with some value of an attribute moves; the published score does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Boosted:
    """`amounts` (N,) float64 by item index, the factor or log-odds of each item; 1 or 0 where it is not boosted."""

    amounts: Tensor
    by: Literal["factor", "log_odds"]

    def keys(self, scores: Tensor, items: Tensor) -> Tensor:
        """What items are ranked by: float32 of the shape of `scores` (probabilities) and `items` (indices).

        By factor, p × f. By log-odds, the probability whose log-odds are x more: p·eˣ / (1 − p + p·eˣ), which leaves
        the keys of items with x = 0 as they are. Computed in float64.
        """
        amounts, probability = self.amounts[items], scores.double()
        if self.by == "factor":
            return (probability * amounts).float()
        odds = probability * amounts.exp()
        return torch.where(amounts == 0, scores, (odds / (1 - probability + odds)).float())
