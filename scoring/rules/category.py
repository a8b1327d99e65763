"""Maximum per category: goes through a ranking from the best item, and skips items of full categories."""

from __future__ import annotations

import torch
from torch import Tensor

from scoring.rules.attributes import NO_VALUE


def within_maximum(categories: Tensor, most: int) -> Tensor:
    """Returns which items of a ranking the maximum per category allows, shape (U, W), bool.

    An item is allowed if it is among the first `most` items of its category in its row. This is the same as a
    greedy choice from the left, because only earlier items of the same category matter. Every item without a
    category (NO_VALUE) is allowed.

    Args:
        categories: (U, W) int64 category codes, in the order of the ranking.
        most: maximum number of items per category.
    """
    grouped, order = torch.sort(categories, dim=1, stable=True)  # both (U, W), stable within a category
    positions = torch.arange(categories.shape[1], device=categories.device).expand_as(grouped)
    begins = torch.ones_like(grouped, dtype=torch.bool)
    begins[:, 1:] = grouped[:, 1:] != grouped[:, :-1]
    first = torch.where(begins, positions, 0).cummax(dim=1).values  # (U, W) first position of the category
    earlier = torch.empty_like(grouped).scatter_(1, order, positions - first)
    return (earlier < most) | (categories == NO_VALUE)
