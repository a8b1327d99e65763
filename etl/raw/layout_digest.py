"""Decides whether changed settings or rules of parsing make stored days obsolete, by a digest of them."""

from __future__ import annotations

from conf.types import Config, RawTable
from storage.manifest import digest_of

# Increase it if a change of the code accepts or rejects other lines. Then all stored days are written again.
_RULES = 3


def layout_digest(config: Config) -> str:
    """Returns a digest of the parsing rules and of the settings of all raw tables, except the paths."""
    tables: list[RawTable | None] = [config.log, config.users, config.items]
    keys = config.keys.model_dump() if config.keys else None
    prepare = [config.prepare] if config.prepare else []
    return digest_of(
        [_RULES, *(table and table.model_dump(exclude={"path"}) for table in tables), keys, *prepare]
    )
