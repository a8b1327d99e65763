"""Reads the business rules of a run. Their tables are checked before a worker starts."""

from __future__ import annotations

from conf.plugins import digests_of
from conf.types import ListRules
from scoring.rules.attributes import digest_of_table, read_attribute
from scoring.rules.read_settings import attributes_used, read_rule_settings
from scoring.rules.request import RulesRequest, rules_request
from storage.manifest import digest_of
from storage.run_context import RunContext


def read_rules(context: RunContext) -> tuple[RulesRequest | None, dict[str, str]]:
    """Returns the request for the business rules, and the digest of their tables.

    The request is None if no rules are configured. The digest is in a dictionary, under the key `rules`. The
    dictionary is empty if the rules read no table. The code of rules of other packages is part of the digest.

    Raises:
        ConfigError, DataError: the errors that read_attribute, rule_digests and the rules' function `check`
            raise.
    """
    config = context.config
    rules = config.score.rules
    request = rules_request(
        rules, config.score.k, context.run_date, {"lake": config.lake, "data": config.data}
    )
    if request is None:
        return None, {}
    tables = {name: table for rule in request.rules for name, table in rule.attributes}
    rows = {name: read_attribute(table) for name, table in tables.items()}
    for plugin, settings in read_rule_settings(rules):
        if hasattr(plugin.load(), "check"):
            plugin.member("check")(settings, {name: rows[name] for name in attributes_used(settings)})
    digests = rule_digests(rules, context.run_date)
    for name, table in tables.items():
        digests[f"{table.path}:{table.column}"] = digest_of_table(rows[name])
    return request, {"rules": digest_of(digests)} if digests else {}


def rule_digests(rules: ListRules | None, run_date: str) -> dict[str, str]:
    """Returns the digests of the code of rules of other packages, and of the tables that rules read.

    The tables of attributes are not included. The result is empty if there are no digests.

    Raises:
        ConfigError: see `read_rule_settings`.
    """
    configured = read_rule_settings(rules)
    digests = digests_of(plugin for plugin, _ in configured)
    for plugin, settings in configured:
        if hasattr(plugin.load(), "digest"):
            digests[f"rules.{plugin.name}.tables"] = str(plugin.member("digest")(settings, run_date))
    return digests
