"""The base class of business rules, and the inputs from which a rule is loaded.

The notation is that of scoring/rules/__init__.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# The code of an item without a value.
NO_VALUE = -1


@dataclass(frozen=True)
class ItemAttribute:
    """The values of one attribute of all items.

    Attributes:
        codes: (N,) int64: for each item index, the index of the item's value in `values`; NO_VALUE for an
            item without a value.
        values: the distinct attribute values.
    """

    codes: NDArray[np.int64]
    values: list[str]


@dataclass(frozen=True)
class RuleInputs:
    """The inputs from which a rule is loaded.

    Attributes:
        name: the key of the rule in `score.rules`.
        items: (N,) the keys of the items that may be recommended, ordered by item index.
        device: the device on which the rule computes.
        run_date: the date of the lists, as YYYY-MM-DD.
        k: the length of the lists.
        attributes: the attributes that `Settings.attributes_used` names.
    """

    name: str
    items: pa.Array
    device: torch.device
    run_date: str
    k: int
    attributes: Mapping[str, ItemAttribute]


class ItemRule:
    """Base class of rules. A rule overrides the methods that it needs.

    The results of all methods must depend only on their arguments and on the data that `load` read. Otherwise
    a task that Spark repeats would make other lists.
    """

    def ranking_scores(self, scores: Tensor, items: Tensor) -> Tensor:
        """Returns the ranking scores of items, (R, W) float32. The published scores do not change.

        Args:
            scores: (R, W) float32 probabilities, or the ranking scores that the previous rule returned.
            items: item indices, (R, W), or (W,) if all R users have the same W items.
        """
        return scores

    def allowed(self, items: Tensor, valid: Tensor) -> Tensor:
        """Returns which items may be in the list, (U, W) bool. Cells that are not `valid` are ignored.

        Args:
            items: (U, W) int64 item indices, the best item of each user first.
            valid: (U, W) bool, whether a cell has a candidate that earlier rules allow.
        """
        return valid

    def moved(self) -> Tensor | None:
        """Returns, for each item, whether its list entries have the reason `rule:<name>`, (N,) bool.

        None means that no item has this reason.
        """
        return None

    def reasons(self) -> tuple[Tensor, Sequence[str]] | None:
        """Returns the rule's own reasons, which replace `rule:<name>`; None if it has no such reasons.

        The result is a pair: for each item, the index of its reason, (N,) int64, -1 for no reason; and the
        texts of the reasons.
        """
        return None

    @property
    def drawn_positions(self) -> int:
        """Returns the number of positions at the end of a list that drawn items get.

        Only one rule may draw items.
        """
        return 0

    def draw_keys(self, users: Sequence[str], items: Tensor) -> Tensor:
        """Returns the keys by which items are drawn, the smallest first: (U, W) int64 in [-2**62, 2**62).

        Args:
            users: the keys of the U users.
            items: (U, W) int64 item indices.
        """
        raise NotImplementedError(f"internal error, please report: {type(self).__name__} draws no items")

    @property
    def moves_items(self) -> bool:
        """Returns whether the rule changes the scores by which items are ranked."""
        return type(self).ranking_scores is not ItemRule.ranking_scores

    @property
    def leaves_out_items(self) -> bool:
        """Returns whether the rule may leave out candidates."""
        return type(self).allowed is not ItemRule.allowed
