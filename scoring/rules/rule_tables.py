"""Reads the business rules of a run. Their tables are checked before a worker starts."""

from __future__ import annotations

import logging

from scoring.rules.attributes import digest_of_table, read_attribute
from scoring.rules.package_rules import package_rule_digests
from scoring.rules.request import AttributeTable, RulesRequest, rules_request
from storage.manifest import digest_of
from storage.run_context import RunContext

log = logging.getLogger("nightrank")


def read_rules(context: RunContext) -> tuple[RulesRequest | None, dict[str, str]]:
    """Returns the request for the business rules, and the digest (hash) of their tables.

    The request is None if no rules are configured. The digest is in a dictionary, under the key `rules`. The
    dictionary is empty if the rules read no table. The code of rules of other packages is part of the digest.

    Raises:
        ConfigError, DataError: the errors that read_attribute and package_rule_digests raise.
    """
    config = context.config
    request = rules_request(
        config.score.rules, config.score.k, context.run_date, {"lake": config.lake, "data": config.data}
    )
    if request is None:
        return None, {}
    digests = package_rule_digests(config.score.rules, context.run_date)
    for rule in (request.boost, request.cap):
        if rule is not None:
            digests[f"{rule.table.path}:{rule.table.column}"] = _digest(rule.table, request)
    return request, {"rules": digest_of(digests)} if digests else {}


def _digest(table: AttributeTable, request: RulesRequest) -> str:
    """Returns the digest of a table of attributes.

    Logs a warning if the configuration boosts attribute values that no item has.
    """
    rows = read_attribute(table)
    if request.boost is not None and request.boost.table == table:
        known = set(rows.column("value").to_pylist())
        unknown = [value for value, _ in request.boost.values if value not in known]
        if unknown:
            log.warning("score.rules.boost: no item of %s has %s=%s", table.path, table.column, unknown)
    return digest_of_table(rows)
