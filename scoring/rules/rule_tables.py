"""The business rules of a night, checked against their tables before any worker starts."""

from __future__ import annotations

import logging

from scoring.rules.attributes import digest_of_table, read_attribute
from scoring.rules.request import AttributeTable, RulesRequest, rules_request
from storage.manifest import digest_of
from storage.run_context import RunContext

log = logging.getLogger("nightrank")


def ruled_by(context: RunContext) -> tuple[RulesRequest | None, dict[str, str]]:
    """The request for the workers and the digest of the tables it reads; (None, nothing) without rules.

    Raises:
        ConfigError, DataError: as read_attribute does.
    """
    config = context.config
    made = rules_request(
        config.score.rules, config.score.k, context.run_date, {"lake": config.lake, "data": config.data}
    )
    if made is None:
        return None, {}
    digests = {}
    for rule in (made.boost, made.cap):
        if rule is not None:
            digests[f"{rule.table.path}:{rule.table.column}"] = _digest(rule.table, made)
    return made, {"rules": digest_of(digests)} if digests else {}


def _digest(table: AttributeTable, made: RulesRequest) -> str:
    rows = read_attribute(table)
    if made.boost is not None and made.boost.table == table:
        known = set(rows.column("value").to_pylist())
        idle = [value for value, _ in made.boost.values if value not in known]
        if idle:
            log.warning("score.rules.boost: no item of %s has %s=%s", table.path, table.column, idle)
    return digest_of_table(rows)
