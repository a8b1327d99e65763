"""Maximum per category: leaves out items of a category after the best `most` items of this category."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from conf.list_types import AttributeRule
from conf.raw_types import PositiveInt
from scoring.rules.item_rule import NO_VALUE, ItemRule, RuleInputs

if TYPE_CHECKING:
    from torch import Tensor


class Settings(AttributeRule):
    """A rule that limits how many items of a list have the same value of an attribute."""

    place: ClassVar[Literal["first", "middle", "last"]] = "last"
    max: PositiveInt = Field(description="Largest number of items in a list that have the same value.")


@dataclass(frozen=True)
class Capped(ItemRule):
    """The rule that limits the number of items per category.

    Attributes:
        categories: (N,) int64: the category code of each item; NO_VALUE for an item without a category.
        most: maximum number of items of one category in a list.
    """

    categories: Tensor
    most: int

    def allowed(self, items: Tensor, valid: Tensor) -> Tensor:
        """Returns which items may be in the list.

        Cells without a candidate do not count towards the maximum.
        """
        return valid & within_maximum(self.categories[items].where(valid, NO_VALUE), self.most)


def load(settings: Settings, inputs: RuleInputs) -> Capped:
    """Returns the rule with the categories of the items."""
    import torch

    codes = inputs.attributes[settings.attribute].codes
    return Capped(torch.from_numpy(codes).to(inputs.device), settings.max)


def within_maximum(categories: Tensor, most: int) -> Tensor:
    """Returns which items of a ranking the maximum per category allows, shape (U, W), bool.

    An item is allowed if it is among the first `most` items of its category in its row. A greedy choice from
    the left gives the same result, because only earlier items of the same category decide whether an item is
    allowed. Every item without a category (NO_VALUE) is allowed.

    Args:
        categories: (U, W) int64 category codes, in the order of the ranking.
        most: maximum number of items per category.
    """
    import torch

    grouped, order = torch.sort(categories, dim=1, stable=True)  # both (U, W); a stable sort keeps the order
    positions = torch.arange(categories.shape[1], device=categories.device).expand_as(grouped)
    begins = torch.ones_like(grouped, dtype=torch.bool)
    begins[:, 1:] = grouped[:, 1:] != grouped[:, :-1]
    first = torch.where(begins, positions, 0).cummax(dim=1).values  # (U, W) first position of the category
    earlier = torch.empty_like(grouped).scatter_(1, order, positions - first)
    return (earlier < most) | (categories == NO_VALUE)
