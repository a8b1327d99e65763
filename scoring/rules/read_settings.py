"""Reads the settings of the business rules of a configuration."""

from __future__ import annotations

from typing import Any

from conf.errors import ConfigError
from conf.list_types import RuleSettings
from conf.load import read_package_settings
from conf.plugins import RULE, Plugin
from conf.types import ListRules, Strict

_ORDER = ("first", "middle", "last")


def read_rule_settings(rules: ListRules | None) -> list[tuple[Plugin, Strict]]:
    """Returns each rule with its checked settings, in the order in which the rules are applied.

    Raises:
        ConfigError: a rule does not exist or cannot be imported, a key is not one of its settings, a value
            breaks its rule, or the rule uses an attribute that is not defined.
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
    """Returns a rule. Raises ConfigError if its package is not installed, or it has no function `load`."""
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
