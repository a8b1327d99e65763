"""Decides whether changed settings or rules of parsing make stored days obsolete, by a digest of them."""

from __future__ import annotations

from typing import Any

from conf.raw_types import LIST_TYPES
from conf.time_types import ISO, UTC
from conf.types import Column, Config, RawTable
from storage.manifest import digest_of

# Increase it if a change of the code accepts or rejects other lines. Then all stored days are written again.
_RULES = 3


def layout_digest(config: Config) -> str:
    """Returns a digest of the parsing rules and of the settings of all raw tables, except the paths.

    `items.missing` is no part of it either, because it does not change how rows are parsed.
    """
    tables: list[RawTable | None] = [config.log, config.users, config.items]
    keys = config.keys.model_dump() if config.keys else None
    prepare = [config.prepare] if config.prepare else []
    return digest_of([_RULES, *(table and _settings(table) for table in tables), keys, *prepare])


def _settings(table: RawTable) -> dict[str, Any]:
    """Returns the settings of a table. A default separator and the same separator written out are equal.

    Keys that did not exist in earlier releases are included only if they are set, so that the days which such
    a release has stored remain valid.
    """
    settings = table.model_dump(exclude={"path", "missing", "columns"})
    if table.time_zone == UTC:
        del settings["time_zone"]
    columns = [_column_settings(column) for column in table.columns]
    return {**settings, "columns": columns, "separator": table.field_separator}


def _column_settings(column: Column) -> dict[str, Any]:
    settings = column.model_dump()
    if column.format == ISO:
        del settings["format"]
    if column.type in LIST_TYPES:
        settings["separator"] = column.element_separator
    else:
        del settings["separator"]
    return settings
