"""Maximum per category: the greedy walk down a ranking that passes over an item whose category is full."""

from __future__ import annotations

import torch
from torch import Tensor

from scoring.rules.attributes import NO_VALUE


def within_maximum(categories: Tensor, most: int) -> Tensor:
    """(U, W) bool: whether the item at each place is among the first `most` of its category in its row.

    A walk that takes from the left whatever its category still has room for takes exactly these: whether it takes an item
    depends on the earlier ones of the same category alone. Items of category NO_VALUE are always taken.

    Args:
        categories: (U, W) int64, in the order of the walk.
    """
    grouped, order = torch.sort(categories, dim=1, stable=True)  # (U, W) each: categories together, walk kept
    places = torch.arange(categories.shape[1], device=categories.device).expand_as(grouped)
    begins = torch.ones_like(grouped, dtype=torch.bool)
    begins[:, 1:] = grouped[:, 1:] != grouped[:, :-1]
    first = torch.where(begins, places, 0).cummax(dim=1).values  # where the category of each place begins
    earlier = torch.empty_like(grouped).scatter_(1, order, places - first)
    return (earlier < most) | (categories == NO_VALUE)
