"""Applies the business rules: chooses which candidates of a ranking form the list, and gives the reasons."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from conf.errors import ConfigError, DataError
from scoring.rules.attributes import align, read_attribute
from scoring.rules.item_rule import ItemRule, RuleInputs
from scoring.rules.request import EXPLORE, RANKED, RulesRequest, find_rule, read_settings

_RANKED_CODE, _EXPLORE_CODE = 0, 1

# Sort keys of ranked items (below every draw key) and of empty cells (above every draw key).
_FIRST, _LAST = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class Chosen:
    """The lists that the business rules chose for U users.

    Each row of the matrices is the list of one user.

    Attributes:
        positions: (U, min(k, W)) int64: for each list entry, the position of its item in the ranking.
            Undefined in cells without an entry.
        filled: (U, min(k, W)) bool: whether the cell contains a list entry. Rows are filled from the left.
        reasons: (U, min(k, W)) int64: for each list entry, the index of its reason in ItemRules.reasons.
    """

    positions: Tensor
    filled: Tensor
    reasons: Tensor


@dataclass(frozen=True)
class ItemRules:
    """The business rules on the device.

    Attributes:
        rules: the rules by name, in the order in which they are applied.
        reason: (N,) int64: the reason code of each item for ranked entries (drawn entries have another
            reason).
        reasons: the texts of the reasons, indexed by reason code.
        of_packages: the names of the rules of other packages. The results of these rules are checked.
        drawing: the rule that draws the items of the last positions; None if there is none.
    """

    rules: Mapping[str, ItemRule]
    reason: Tensor
    reasons: tuple[str, ...]
    of_packages: frozenset[str]
    drawing: ItemRule | None = None

    @property
    def need_whole_rankings(self) -> bool:
        """Returns whether a list may contain items that are not among the k best items by ranking key.

        Rules that leave out items, such as a maximum per category, and rules that draw items have this
        effect. A boost changes the ranking keys themselves, so it does not need more than the k best items.
        """
        return self.drawing is not None or any(rule.leaves_out_items for rule in self.rules.values())

    @property
    def moves_items(self) -> bool:
        """Returns whether a rule changes the scores by which items are ranked."""
        return any(rule.moves_items for rule in self.rules.values())

    def ranking_scores(self, scores: Tensor, items: Tensor) -> Tensor:
        """Returns the ranking scores of items, float32.

        Args:
            scores: the probabilities of the items.
            items: item indices, in the shape of `scores`.

        Raises:
            ConfigError: a rule of another package returned no tensor.
            DataError: a rule of another package returned scores of another shape, or returned NaN where the
                score was a number.
        """
        ranked_by = scores
        for name, rule in self.rules.items():
            before, ranked_by = ranked_by, rule.ranking_scores(ranked_by, items)
            if name in self.of_packages:
                _require_tensor(name, "ranking_scores", ranked_by)
                ranked_by = ranked_by.float()
                _require_scores(name, ranked_by, before)
        return ranked_by

    def choose(self, items: Tensor, valid: Tensor, users: Sequence[str], k: int) -> Chosen:
        """Chooses the list of each user from the user's ranking.

        The first positions get the best items that all rules allow. If a rule draws items, the last positions
        get remaining items in the order of the draw. The limits of rules apply to the complete list.

        Args:
            items: (U, W) int64 item indices, best first.
            valid: (U, W) bool, false in cells without a candidate.
            users: the keys of the U users.
            k: length of the lists.
        """
        allowed = self._allowed(items, valid)
        if self.drawing is None:
            positions, filled = _first(allowed, k)
            return Chosen(positions, filled, self.reason[items.gather(1, positions)])
        ranked = allowed & (allowed.cumsum(1) <= k - self.drawing.drawn_positions)  # (U, W)
        drawn = self.drawing.draw_keys(users, items)
        # Sort ranked items first, in their order, so that they count towards the maximum per category. Drawn
        # items follow, then empty cells.
        in_order = torch.arange(items.shape[1], device=items.device) + _FIRST  # (W,)
        order = torch.sort(
            torch.where(ranked, in_order, torch.where(valid, drawn, _LAST)), dim=1, stable=True
        ).indices
        allowed = self._allowed(items.gather(1, order), valid.gather(1, order))
        positions, filled = _first(allowed, k)
        positions = order.gather(1, positions)
        reasons = self.reason[items.gather(1, positions)]
        return Chosen(positions, filled, torch.where(ranked.gather(1, positions), reasons, _EXPLORE_CODE))

    def _allowed(self, items: Tensor, valid: Tensor) -> Tensor:
        """Returns which cells have a candidate that all rules allow, shape (U, W), bool."""
        for name, rule in self.rules.items():
            if rule.leaves_out_items:
                allowed = rule.allowed(items, valid)
                _require_tensor(name, "allowed", allowed, valid.shape)
                valid = valid & allowed
        return valid


def _require_scores(name: str, scores: Tensor, before: Tensor) -> None:
    """Raises DataError if a rule changed the shape of scores, or made a number NaN."""
    if scores.shape != before.shape or (scores.isnan() & ~before.isnan()).any():
        raise DataError(
            f"the rule {name} returned ranking scores of the shape {tuple(scores.shape)} for scores of the "
            f"shape {tuple(before.shape)}, and {int(scores.isnan().sum())} of them NaN; the shape must not "
            "change, and a number must not become NaN",
            "correct the rule's function ranking_scores, or the table that it reads",
        )


def _require_tensor(name: str, function: str, result: Any, flags: Sequence[int] | None = None) -> None:
    """Raises ConfigError unless a rule returned a tensor; with `flags`, a bool tensor of this shape."""
    is_tensor = isinstance(result, Tensor)
    if is_tensor and (flags is None or (result.dtype == torch.bool and result.shape == tuple(flags))):
        return
    shown = f"{result.dtype} of the shape {tuple(result.shape)}" if is_tensor else type(result).__name__
    needed = "a tensor" if flags is None else f"bools of the shape {tuple(flags)}"
    raise ConfigError(
        f"the function {function} of the rule {name} returned {shown}, not {needed}",
        "correct the rule; scoring/rules/item_rule.py describes its functions",
    )


def _first(allowed: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the positions of the first k allowed cells of each row, in ascending order.

    Args:
        allowed: (U, W) bool.
        k: maximum number of positions per row.

    Returns:
        Two matrices of shape (U, min(k, W)): the positions, and whether the cell contains a position.
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
        ConfigError: the package of a rule is not installed in this process, its module does not fulfil the
            contract, or several rules draw items.
        DataError: see read_attribute and align.
    """
    rules: dict[str, ItemRule] = {}
    of_packages = set[str]()
    for rule in request.rules:
        plugin = find_rule(rule.name)
        attributes = {name: align(table, read_attribute(table), items) for name, table in rule.attributes}
        inputs = RuleInputs(rule.name, items, device, request.run_date, request.k, attributes)
        loaded = plugin.member("load")(read_settings(plugin, json.loads(rule.settings)), inputs)
        if not isinstance(loaded, ItemRule):
            raise ConfigError(
                f"{plugin} loaded a {type(loaded).__name__}, not an ItemRule",
                "correct the module's function load: it must return an instance of a subclass of ItemRule",
            )
        rules[rule.name] = loaded
        if plugin.package is not None:
            of_packages.add(rule.name)
    reason, reasons = _reasons(rules, len(items))
    return ItemRules(rules, reason.to(device), reasons, frozenset(of_packages), _drawing(rules))


def _reasons(rules: Mapping[str, ItemRule], num_items: int) -> tuple[Tensor, tuple[str, ...]]:
    """Returns the reason code of each item, (N,) int64, and the texts of the codes.

    If several rules give a reason for an item, the item gets the first rule's reason.
    """
    reasons, codes = [RANKED, EXPLORE], torch.full((num_items,), _RANKED_CODE)
    for name, rule in rules.items():
        rule_reasons = rule.reasons()
        moved = rule.moved() if rule_reasons is None else None
        if moved is not None:
            _require_tensor(name, "moved", moved, (num_items,))
            rule_reasons = moved.long() - 1, [f"rule:{name}"]
        if rule_reasons is not None:
            of_items, texts = rule_reasons[0].cpu(), rule_reasons[1]
            codes = codes.where((codes != _RANKED_CODE) | (of_items < 0), of_items + len(reasons))
            reasons += texts
    return codes, tuple(reasons)


def _drawing(rules: Mapping[str, ItemRule]) -> ItemRule | None:
    """Returns the rule that draws items; None if there is none. Raises ConfigError if there are several."""
    drawing = [name for name, rule in rules.items() if rule.drawn_positions]
    if len(drawing) > 1:
        raise ConfigError(
            f"the rules {drawing} all draw the items of the last positions of a list", "remove all but one"
        )
    return rules[drawing[0]] if drawing else None
