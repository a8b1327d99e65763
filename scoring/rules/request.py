"""The request that describes the business rules to the workers.

A request contains only paths and settings, so it can be pickled and hashed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from conf.rule_types import Attribute
from conf.types import ListRules

RANKED, EXPLORE = "ranked", "explore"  # reasons of list entries


@dataclass(frozen=True)
class AttributeTable:
    """A table with an attribute of the items, and how to read it.

    Attributes:
        path: path or glob of the files, or path of a folder of files.
        key: name of the column with the item id.
        column: name of the column with the attribute.
        settings: the attribute of the configuration, as JSON.
    """

    path: str
    key: str
    column: str
    settings: str

    @property
    def attribute(self) -> Attribute:
        """Returns the attribute of the configuration."""
        return Attribute.model_validate_json(self.settings)


def attribute_table(attribute: Attribute, folders: Mapping[str, str]) -> AttributeTable:
    """Returns the table of an attribute.

    Args:
        attribute: an attribute of the configuration.
        folders: maps the name of a placeholder, such as `lake`, to the text that replaces it in the path.
    """
    path = attribute.path
    for placeholder, value in folders.items():
        path = path.replace(f"{{{placeholder}}}", value)
    return AttributeTable(path, attribute.key, attribute.column, attribute.model_dump_json())


@dataclass(frozen=True)
class BoostRequest:
    """The settings of a boost.

    Attributes:
        table: the table with the attribute.
        by: whether the numbers in `values` are factors or log-odds.
        values: pairs of an attribute value and the factor or log-odds of this value.
    """

    table: AttributeTable
    by: Literal["factor", "log_odds"]
    values: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class CapRequest:
    """The settings of a maximum per category.

    Attributes:
        table: the table with the attribute. Items with the same value of this attribute form a category.
        most: maximum number of items of one category in a list.
    """

    table: AttributeTable
    most: int


@dataclass(frozen=True)
class PackageRuleRequest:
    """The settings of a rule of another package.

    Attributes:
        name: the name of the rule.
        settings: its settings as JSON.
        run_date: the date of the lists.
    """

    name: str
    settings: str
    run_date: str


@dataclass(frozen=True)
class RulesRequest:
    """The business rules of one run.

    Attributes:
        boost: the settings of the boost; None if there is no boost.
        cap: the settings of the maximum per category; None if there is no maximum.
        explore: how many of the k positions get items drawn at random.
        salt: the seed and the date that the random draw depends on.
        packages: the settings of the rules of other packages, in the order in which they are applied.
    """

    boost: BoostRequest | None
    cap: CapRequest | None
    explore: int
    salt: str
    packages: tuple[PackageRuleRequest, ...] = ()


def rules_request(
    rules: ListRules | None, k: int, run_date: str, folders: Mapping[str, str]
) -> RulesRequest | None:
    """Returns the request for the business rules of a configuration; None if no rule is configured.

    Args:
        rules: the section `score.rules`.
        k: length of the lists.
        run_date: the date that replaces the placeholder {date} in a path.
        folders: maps the name of a placeholder, such as `lake`, to the folder that replaces it in a path.
    """
    if rules is None:
        return None
    tables = {
        name: attribute_table(attribute, {**folders, "date": run_date})
        for name, attribute in rules.attributes.items()
    }
    boost, cap, exploration = rules.boost, rules.max_per_category, rules.exploration
    return RulesRequest(
        BoostRequest(tables[boost.attribute], boost.by, tuple(sorted(boost.values.items())))
        if boost
        else None,
        CapRequest(tables[cap.attribute], cap.max) if cap else None,
        positions_to_explore(exploration.share, k) if exploration else 0,
        f"{exploration.seed}|{run_date}" if exploration else "",
        tuple(
            PackageRuleRequest(name, json.dumps(settings, sort_keys=True, default=str), run_date)
            for name, settings in rules.packages.items()
        ),
    )


def positions_to_explore(share: float, k: int) -> int:
    """Returns ceil(share × k): how many of the k positions of a list get items drawn at random.

    The product is rounded before ceil to remove floating-point errors. So a share of 0.1 and k = 30 give 3,
    not 4.
    """
    return math.ceil(round(share * k, 9))
