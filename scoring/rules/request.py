"""The settings of the business rules, and the request that describes the rules to the workers.

A request contains only paths and settings, so it can be pickled and hashed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conf.errors import ConfigError
from conf.list_types import Attribute, RuleSettings
from conf.load import read_package_settings
from conf.names import with_date
from conf.plugins import RULE, Plugin
from conf.types import ListRules, Strict

_ORDER = ("first", "middle", "last")


def read_rule_settings(rules: ListRules | None) -> list[tuple[Plugin, Strict]]:
    """Returns each rule with its checked settings, in the order in which the rules are applied.

    Raises:
        ConfigError: a rule does not exist or cannot be imported, or it uses an attribute that is not defined.
            Also raised if a key is not one of its settings, or if a value is not allowed.
    """
    if rules is None:
        return []
    read = [(find_rule(name), settings) for name, settings in rules.configured.items()]
    checked = [(plugin, read_settings(plugin, settings)) for plugin, settings in read]
    for plugin, settings in checked:
        if unknown := [name for name in attributes_used(settings) if name not in rules.attributes]:
            raise ConfigError(
                f"score.rules.{plugin.name} uses the attributes {unknown}, which are not defined",
                f"define them in score.rules.attributes, or use one of {sorted(rules.attributes)}",
            )
    return sorted(checked, key=lambda rule: _ORDER.index(getattr(rule[1], "place", "middle")))


def find_rule(name: str) -> Plugin:
    """Returns a rule. Raises ConfigError if its package is not installed or its module lacks `load`."""
    plugin = RULE.find(name)
    if plugin is None:
        raise ConfigError(
            f"score.rules.{name} is a rule of a package that is not installed here",
            "install the package in the environment of every process that makes lists, or remove the rule",
        )
    plugin.member("load")
    return plugin


def read_settings(plugin: Plugin, settings: RuleSettings | dict[str, Any]) -> Strict:
    """Returns the checked settings of a rule. Raises ConfigError if a key or a value is wrong."""
    if isinstance(settings, RuleSettings):
        return settings
    return read_package_settings(plugin, settings, ("score", "rules", plugin.name))


def attributes_used(settings: Strict) -> list[str]:
    """Returns the names of the attributes that a rule needs."""
    return settings.attributes_used if isinstance(settings, RuleSettings) else []


RANKED, EXPLORE = "ranked", "explore"  # reasons of list entries


@dataclass(frozen=True)
class AttributeTable:
    """A table with an attribute of the items, and how to read it.

    Attributes:
        path: path or glob of the files, or path of a folder of files.
        key: name of the column with the item id.
        column: name of the column with the attribute.
        settings: the attribute's section of the configuration, as JSON.
    """

    path: str
    key: str
    column: str
    settings: str

    @property
    def attribute(self) -> Attribute:
        """Returns the attribute's section of the configuration."""
        return Attribute.model_validate_json(self.settings)


def attribute_table(
    attribute: Attribute, folders: Mapping[str, str], run_date: str | None = None
) -> AttributeTable:
    """Returns the table of an attribute.

    Args:
        attribute: the attribute's section of the configuration.
        folders: maps the name of a placeholder, such as `lake`, to the string that replaces it in the path.
        run_date: the date that replaces `{date}` in the path; None if the path has no date.
    """
    path = attribute.path
    for placeholder, value in folders.items():
        path = path.replace(f"{{{placeholder}}}", value)
    if run_date is not None:
        path = with_date(path, run_date)
    return AttributeTable(path, attribute.key, attribute.column, attribute.model_dump_json())


@dataclass(frozen=True)
class RuleRequest:
    """The settings of a rule.

    Attributes:
        name: the key of the rule in `score.rules`.
        settings: its settings as JSON.
        attributes: one pair (name, table) for each attribute that the rule uses.
    """

    name: str
    settings: str
    attributes: tuple[tuple[str, AttributeTable], ...] = ()


@dataclass(frozen=True)
class RulesRequest:
    """The business rules of one run.

    Attributes:
        rules: the settings of the rules, in the order in which they are applied.
        k: length of the lists.
        run_date: the date of the lists.
    """

    rules: tuple[RuleRequest, ...]
    k: int
    run_date: str


def rules_request(
    rules: ListRules | None, k: int, run_date: str, folders: Mapping[str, str]
) -> RulesRequest | None:
    """Returns the request for the business rules of a configuration; None if no rule is configured.

    Args:
        rules: the section `score.rules`.
        k: length of the lists.
        run_date: the date that replaces the placeholder {date} in a path.
        folders: maps the name of a placeholder, such as `lake`, to the folder that replaces it in a path.

    Raises:
        ConfigError: see `read_rule_settings`.
    """
    if rules is None:
        return None
    tables = {
        name: attribute_table(attribute, folders, run_date) for name, attribute in rules.attributes.items()
    }
    requests = []
    for plugin, settings in read_rule_settings(rules):
        text = json.dumps(settings.model_dump(mode="json"), sort_keys=True)
        used = tuple((name, tables[name]) for name in attributes_used(settings))
        requests.append(RuleRequest(plugin.name, text, used))
    return RulesRequest(tuple(requests), k, run_date)
