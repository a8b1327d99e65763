"""Business rules of other packages: entry points of the group `nightrank.rules`.

The module of such a rule contains

    class Settings(Strict)                                   the keys of the rule below score.rules.<name>
    load(settings: Settings, inputs: RuleInputs) -> ItemRule   called in each process that makes lists
    digest(settings: Settings, run_date: str) -> str         optional: a digest of the tables that `load`
                                                             reads. The lists are made again if it changes

The notation is that of scoring/rules/__init__.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from conf.errors import ConfigError
from conf.load import read_package_settings
from conf.plugins import Plugin
from conf.rule_types import rule_extension
from conf.types import ListRules, Strict
from scoring.rules.request import PackageRuleRequest

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class RuleInputs:
    """What a rule of another package is loaded for.

    Attributes:
        items: (N,) the keys of the items that may be recommended, ordered by item index.
        device: the device on which the rule computes.
        run_date: the date of the lists, as YYYY-MM-DD.
    """

    items: pa.Array
    device: torch.device
    run_date: str


class ItemRule:
    """Base class of the rules of other packages. A rule overrides the methods that it needs.

    Results must depend only on the arguments and on what `load` read. Otherwise a repeated task would make
    other lists.
    """

    def ranking_scores(self, scores: Tensor, items: Tensor) -> Tensor:
        """Returns the scores that items are ranked by, (R, W) float32. The published scores do not change.

        Args:
            scores: (R, W) float32 probabilities, or the results of the rules before this one.
            items: item indices, (R, W), or (W,) if all R users have the same W items.
        """
        return scores

    def allowed(self, items: Tensor, valid: Tensor) -> Tensor:
        """Returns which items may be in the list, (U, W) bool. A cell that is not valid has no candidate.

        Args:
            items: (U, W) int64 item indices, the best item of each user first.
            valid: (U, W) bool, whether a cell has a candidate that earlier rules allow.
        """
        return valid

    def moved(self) -> Tensor | None:
        """Returns the items whose list entries have the reason `rule:<name>`, (N,) bool; None for no item."""
        return None

    @property
    def moves_items(self) -> bool:
        """Returns whether the rule changes ranking scores."""
        return type(self).ranking_scores is not ItemRule.ranking_scores

    @property
    def leaves_out_items(self) -> bool:
        """Returns whether the rule may leave out candidates."""
        return type(self).allowed is not ItemRule.allowed


def read_package_rules(rules: ListRules | None) -> list[tuple[Plugin, Strict]]:
    """Returns the extension and the checked settings of each rule of another package, in order.

    Raises:
        ConfigError: a rule does not exist or cannot be imported, a key is not one of its settings, or a value
            breaks its rule.
    """
    named = rules.packages if rules is not None else {}
    return [_read(name, json.dumps(settings, default=str)) for name, settings in named.items()]


def load_package_rule(request: PackageRuleRequest, items: pa.Array, device: torch.device) -> ItemRule:
    """Loads a rule of another package in a process that makes lists.

    Args:
        request: names the rule and has its settings.
        items: the item keys, ordered by item index.
        device: the device for its tensors.

    Raises:
        ConfigError: the package is not installed in this process, or its module does not obey the contract.
    """
    extension, settings = _read(request.name, request.settings)
    rule = extension.member("load")(settings, RuleInputs(items, device, request.run_date))
    if not isinstance(rule, ItemRule):
        raise ConfigError(
            f"{extension} loaded a {type(rule).__name__}, not an ItemRule",
            "let the function load of the module return an object of a subclass of ItemRule",
        )
    return rule


def package_rule_digests(rules: ListRules | None, run_date: str) -> dict[str, str]:
    """Returns the digests of the code and of the tables of rules of other packages; empty if there are none.

    Raises:
        ConfigError: see `read_package_rules`.
    """
    digests = {}
    for extension, settings in read_package_rules(rules):
        digests[f"rules.{extension.name}"] = extension.digest()
        if hasattr(extension.load(), "digest"):
            digests[f"rules.{extension.name}.tables"] = str(extension.member("digest")(settings, run_date))
    return digests


def _read(name: str, settings: str) -> tuple[Plugin, Strict]:
    extension = rule_extension(name)
    if extension is None:
        raise ConfigError(
            f"score.rules.{name} is a rule of a package that is not installed here",
            "install the package in the environment of every process that makes lists, or remove the rule",
        )
    extension.member("load")
    return extension, read_package_settings(extension, json.loads(settings), ("score", "rules", name))
