"""All rules together: from a whole ranking to the places that make the list, and why each is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import torch
from torch import Tensor

from scoring.rules.attributes import ItemAttribute, align, read_attribute
from scoring.rules.boost import Boosted
from scoring.rules.category import within_maximum
from scoring.rules.exploration import draw_keys, text_hashes
from scoring.rules.request import BoostRequest, RulesRequest

RANKED, EXPLORE = "ranked", "explore"
_RANKED_CODE, _EXPLORE_CODE = 0, 1

# Below and above every draw key.
_FIRST, _LAST = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class Chosen:
    """Lists of one block.

    Attributes:
        places: (U, min(k, W)) int64, places in the ranking, in list order; where `filled` is false they mean nothing.
        filled: (U, min(k, W)) bool; a row is filled from the left.
        reasons: (U, min(k, W)) int64, places in ItemRules.reasons.
    """

    places: Tensor
    filled: Tensor
    reasons: Tensor


@dataclass(frozen=True)
class ItemRules:
    """The rules with the attributes of the items on the device.

    Attributes:
        boost: None boosts nothing.
        boost_reason: (N,) int64, the reason of an item that is ranked.
        categories: (N,) int64 codes; None caps nothing.
        most: items a category may have in a list.
        explore: how many of the k places are drawn.
        item_hashes: (N,) int64; empty where nothing is drawn.
        salt: of the users' hashes.
        reasons: the text of each reason code.
    """

    boost: Boosted | None
    boost_reason: Tensor
    categories: Tensor | None
    most: int
    explore: int
    item_hashes: Tensor
    salt: str
    reasons: tuple[str, ...]

    @property
    def need_whole_rankings(self) -> bool:
        """Whether a list may hold an item that is not among the k best; a boost alone only changes which these are."""
        return self.categories is not None or self.explore > 0

    def ranking_scores(self, scores: Tensor, items: Tensor) -> Tensor:
        """What items are ranked by, float32 of any shape."""
        return scores if self.boost is None else self.boost.keys(scores, items)

    def choose(self, items: Tensor, valid: Tensor, users: Sequence[str], k: int) -> Chosen:
        """The list of each user.

        The first k − explore places go to the best items that the maximum per category allows. The others go to the rest
        in the order of the draw, as far as the maximum, counted over the whole list, allows.

        Args:
            items: (U, W) int64 item indices, best first.
            valid: (U, W) bool, false where there is no candidate.
            users: U keys.
        """
        allowed = self._allowed(items, valid)
        if not self.explore:
            places, filled = _first(allowed, k)
            return Chosen(places, filled, self.boost_reason[items.gather(1, places)])
        ranked = allowed & (allowed.cumsum(1) <= k - self.explore)  # (U, W)
        hashes = text_hashes(users, self.salt).to(items.device)
        drawn = draw_keys(hashes, self.item_hashes[items])
        # Ranked ones first and in their order, so that they count towards the maximum; then the draw; then no candidates.
        walk = torch.arange(items.shape[1], device=items.device) + _FIRST  # (W,)
        order = torch.sort(
            torch.where(ranked, walk, torch.where(valid, drawn, _LAST)), dim=1, stable=True
        ).indices
        again = self._allowed(items.gather(1, order), valid.gather(1, order))
        places, filled = _first(again, k)
        places = order.gather(1, places)
        reasons = self.boost_reason[items.gather(1, places)]
        return Chosen(places, filled, torch.where(ranked.gather(1, places), reasons, _EXPLORE_CODE))

    def _allowed(self, items: Tensor, valid: Tensor) -> Tensor:
        if self.categories is None:
            return valid
        # Places without a candidate come last, so they take no room from one.
        return valid & within_maximum(self.categories[items], self.most)


def _first(allowed: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(places, filled), (U, min(k, W)) each: the first allowed places of each row, in order."""
    users, width = allowed.shape
    nth = allowed.cumsum(1)  # (U, W) from 1
    user, place = (allowed & (nth <= k)).nonzero(as_tuple=True)
    places = torch.zeros((users, min(k, width)), dtype=torch.int64, device=allowed.device)
    filled = torch.zeros_like(places, dtype=torch.bool)
    cell = (user, nth[user, place] - 1)
    places[cell], filled[cell] = place, True
    return places, filled


def load_rules(request: RulesRequest, items: pa.Array, device: torch.device) -> ItemRules:
    """The rules for these items, by index.

    Raises:
        ConfigError, DataError: as read_attribute and align do; or a boosted value that no item has.
    """
    reasons, boost = [RANKED, EXPLORE], None
    boost_reason = torch.full((len(items),), _RANKED_CODE)
    if request.boost is not None:
        boost, boost_reason, named = _boost(request.boost, items)
        reasons += named
    cap, categories = request.cap, None
    if cap is not None:
        attribute = align(cap.table, read_attribute(cap.table), items)
        categories = torch.from_numpy(attribute.codes).to(device)
    hashes = text_hashes(items.to_pylist()) if request.explore else torch.empty(0, dtype=torch.int64)
    return ItemRules(
        boost and Boosted(boost.amounts.to(device), boost.by),
        boost_reason.to(device),
        categories,
        cap.most if cap else 0,
        request.explore,
        hashes.to(device),
        request.salt,
        tuple(reasons),
    )


def _boost(request: BoostRequest, items: pa.Array) -> tuple[Boosted, Tensor, list[str]]:
    attribute: ItemAttribute = align(request.table, read_attribute(request.table), items)
    neutral = 1.0 if request.by == "factor" else 0.0
    amounts, reasons = list[float](), list[int]()
    named = list[str]()
    given = dict(request.values)
    for value in attribute.values:
        amount = given.get(value, neutral)
        amounts.append(amount)
        reasons.append(_RANKED_CODE if amount == neutral else _EXPLORE_CODE + 1 + len(named))
        if amount != neutral:
            named.append(f"boost:{value}")
    codes = torch.from_numpy(
        attribute.codes
    )  # NO_VALUE, -1, finds the last place: that of items without a value
    by_value = torch.tensor([*amounts, neutral], dtype=torch.float64)
    return Boosted(by_value[codes], request.by), torch.tensor([*reasons, _RANKED_CODE])[codes], named
