"""Applies the business rules: chooses which candidates of a ranking form the list, and gives the reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import pyarrow as pa
import torch
from torch import Tensor

from conf.errors import ConfigError, DataError
from scoring.rules.attributes import NO_VALUE, ItemAttribute, align, read_attribute
from scoring.rules.boost import Boosted
from scoring.rules.category import within_maximum
from scoring.rules.exploration import draw_keys, text_hashes
from scoring.rules.package_rules import ItemRule, load_package_rule
from scoring.rules.request import EXPLORE, RANKED, BoostRequest, RulesRequest

_RANKED_CODE, _EXPLORE_CODE = 0, 1

# The first number is below every draw key, the second is above every draw key.
_FIRST, _LAST = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class Chosen:
    """The lists that the business rules chose for U users.

    Each row of the matrices is the list of one user.

    Attributes:
        positions: (U, min(k, W)) int64: for each list entry, the position of its item in the ranking.
            Undefined in cells without an entry.
        filled: (U, min(k, W)) bool: whether the cell has a list entry. Rows are filled from the left.
        reasons: (U, min(k, W)) int64: for each list entry, the index of its reason in ItemRules.reasons.
    """

    positions: Tensor
    filled: Tensor
    reasons: Tensor


@dataclass(frozen=True)
class ItemRules:
    """The business rules, and the attributes of the items that the rules need, on the device.

    Attributes:
        boost: the boost of the items; None if there is no boost.
        boost_reason: (N,) int64: the reason code of each item for entries that are ranked, not drawn at
            random.
        categories: (N,) int64: the category code of each item; None if there is no maximum per category.
        most: maximum number of items of one category in a list.
        explore: how many of the k positions get items drawn at random.
        item_hashes: (N,) int64: the hash of each item key; empty if `explore` is 0.
        salt: the salt of the hashes of user keys.
        reasons: the texts of the reasons, indexed by reason code.
        packages: the rules of other packages by name, in the order in which they are applied.
    """

    boost: Boosted | None
    boost_reason: Tensor
    categories: Tensor | None
    most: int
    explore: int
    item_hashes: Tensor
    salt: str
    reasons: tuple[str, ...]
    packages: Mapping[str, ItemRule] = field(default_factory=dict)

    @property
    def need_whole_rankings(self) -> bool:
        """Returns whether a list may contain items that are not among the k best items by ranking key.

        This is so with a maximum per category, with exploration, and with rules of other packages that leave
        out items. A boost changes the ranking keys themselves, so it does not need more than the k best
        items.
        """
        leave_out = any(rule.leaves_out_items for rule in self.packages.values())
        return self.categories is not None or self.explore > 0 or leave_out

    @property
    def moves_items(self) -> bool:
        """Returns whether the ranking scores of items differ from their scores."""
        return self.boost is not None or any(rule.moves_items for rule in self.packages.values())

    def ranking_scores(self, scores: Tensor, items: Tensor) -> Tensor:
        """Returns the ranking scores of items, float32.

        Args:
            scores: the probabilities of the items.
            items: item indices, in the shape of `scores`.

        Raises:
            ConfigError: a rule of another package returned no tensor.
            DataError: a rule of another package returned scores of another shape, or NaN for a number.
        """
        ranked_by = scores if self.boost is None else self.boost.keys(scores, items)
        for name, rule in self.packages.items():
            before, ranked_by = ranked_by, rule.ranking_scores(ranked_by, items)
            _require_tensor(name, "ranking_scores", ranked_by)
            ranked_by = ranked_by.float()
            if ranked_by.shape != before.shape or (ranked_by.isnan() & ~before.isnan()).any():
                raise DataError(
                    f"the rule {name} returned ranking scores of the shape {tuple(ranked_by.shape)}, "
                    f"{int(ranked_by.isnan().sum())} of them NaN, for scores of the shape "
                    f"{tuple(before.shape)}",
                    "correct the rule's function ranking_scores, or the table that it reads",
                )
        return ranked_by

    def choose(self, items: Tensor, valid: Tensor, users: Sequence[str], k: int) -> Chosen:
        """Chooses the list of each user from the user's ranking.

        The first k − explore positions get the best items that the maximum per category allows. The other
        positions get remaining items in a random order. The maximum per category applies to the complete
        list.

        Args:
            items: (U, W) int64 item indices, best first.
            valid: (U, W) bool, false in cells without a candidate.
            users: the keys of the U users.
            k: length of the lists.
        """
        allowed = self._allowed(items, valid)
        if not self.explore:
            positions, filled = _first(allowed, k)
            return Chosen(positions, filled, self.boost_reason[items.gather(1, positions)])
        ranked = allowed & (allowed.cumsum(1) <= k - self.explore)  # (U, W)
        hashes = text_hashes(users, self.salt).to(items.device)
        drawn = draw_keys(hashes, self.item_hashes[items])
        # Sort ranked items first, in their order, so that they count towards the maximum per category. Then
        # come drawn items, then empty cells.
        in_order = torch.arange(items.shape[1], device=items.device) + _FIRST  # (W,)
        order = torch.sort(
            torch.where(ranked, in_order, torch.where(valid, drawn, _LAST)), dim=1, stable=True
        ).indices
        allowed = self._allowed(items.gather(1, order), valid.gather(1, order))
        positions, filled = _first(allowed, k)
        positions = order.gather(1, positions)
        reasons = self.boost_reason[items.gather(1, positions)]
        return Chosen(positions, filled, torch.where(ranked.gather(1, positions), reasons, _EXPLORE_CODE))

    def _allowed(self, items: Tensor, valid: Tensor) -> Tensor:
        """Returns which cells have a candidate that all rules allow, shape (U, W), bool."""
        for name, rule in self.packages.items():
            allowed = rule.allowed(items, valid)
            _require_tensor(name, "allowed", allowed, valid.shape)
            valid = valid & allowed
        if self.categories is None:
            return valid
        # Cells without a candidate come last, so they cannot use up the maximum before a candidate.
        categories = self.categories[items]
        if self.packages:  # nor may items that a rule left out
            categories = categories.where(valid, NO_VALUE)
        return valid & within_maximum(categories, self.most)


def _require_tensor(name: str, function: str, result: Any, flags: Sequence[int] | None = None) -> None:
    """Raises ConfigError unless a function of a rule returned a tensor; with `flags`, bools of this shape."""
    is_tensor = isinstance(result, Tensor)
    if is_tensor and (flags is None or (result.dtype == torch.bool and result.shape == tuple(flags))):
        return
    shown = f"{result.dtype} of the shape {tuple(result.shape)}" if is_tensor else type(result).__name__
    needed = "a tensor" if flags is None else f"bools of the shape {tuple(flags)}"
    raise ConfigError(
        f"the function {function} of the rule {name} returned {shown}, not {needed}",
        "correct the rule; scoring/rules/package_rules.py describes its functions",
    )


def _first(allowed: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the positions of the first k allowed cells of each row, in order.

    Args:
        allowed: (U, W) bool.
        k: maximum number of positions per row.

    Returns:
        Two matrices of shape (U, min(k, W)): the positions, and whether the cell has a position.
    """
    users, width = allowed.shape
    nth = allowed.cumsum(1)  # (U, W) from 1
    user, position = (allowed & (nth <= k)).nonzero(as_tuple=True)
    positions = torch.zeros((users, min(k, width)), dtype=torch.int64, device=allowed.device)
    filled = torch.zeros_like(positions, dtype=torch.bool)
    cell = (user, nth[user, position] - 1)
    positions[cell], filled[cell] = position, True
    return positions, filled


def load_rules(request: RulesRequest, items: pa.Array, device: torch.device) -> ItemRules:
    """Reads the tables that the business rules need, and returns the rules.

    Args:
        request: names the rules and their tables.
        items: the item keys, ordered by item index.
        device: the device for the tensors of the result.

    Raises:
        ConfigError, DataError: the errors that read_attribute, align and load_package_rule raise.
    """
    reasons, boost = [RANKED, EXPLORE], None
    boost_reason = torch.full((len(items),), _RANKED_CODE)
    if request.boost is not None:
        boost, boost_reason, boost_reasons = _boost(request.boost, items)
        reasons += boost_reasons
    cap, categories = request.cap, None
    if cap is not None:
        attribute = align(cap.table, read_attribute(cap.table), items)
        categories = torch.from_numpy(attribute.codes).to(device)
    packages = {rule.name: load_package_rule(rule, items, device) for rule in request.packages}
    for name, rule in packages.items():
        moved = rule.moved()
        if moved is not None:
            _require_tensor(name, "moved", moved, (len(items),))
            boost_reason = boost_reason.where((boost_reason != _RANKED_CODE) | ~moved.cpu(), len(reasons))
            reasons.append(f"rule:{name}")
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
        packages,
    )


def _boost(request: BoostRequest, items: pa.Array) -> tuple[Boosted, Tensor, list[str]]:
    """Returns the boost, the reason code of each item, and the texts of the new reason codes.

    The reason codes have the shape (N,).
    """
    attribute: ItemAttribute = align(request.table, read_attribute(request.table), items)
    if request.by == "factor":
        neutral = 1.0
    elif request.by == "log_odds":
        neutral = 0.0
    else:
        assert_never(request.by)
    amounts, codes_of_values, texts = list[float](), list[int](), list[str]()
    configured = dict(request.values)
    for value in attribute.values:
        amount = configured.get(value, neutral)
        amounts.append(amount)
        codes_of_values.append(_RANKED_CODE if amount == neutral else _EXPLORE_CODE + 1 + len(texts))
        if amount != neutral:
            texts.append(f"boost:{value}")
    # NO_VALUE is -1, so items without a value get the last entry.
    codes = torch.from_numpy(attribute.codes)
    by_value = torch.tensor([*amounts, neutral], dtype=torch.float64)
    return Boosted(by_value[codes], request.by), torch.tensor([*codes_of_values, _RANKED_CODE])[codes], texts
