"""Decides whether changed settings or rules of parsing make stored days obsolete, by a digest of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conf.raw_types import LIST_TYPES, Log
from conf.time_types import ISO, UTC
from conf.types import Column, Config, RawTable
from storage.manifest import digest_of

# Increase it if a change of the code accepts or rejects other lines. Then all stored days are written again.
_RULES = 3
# The rules of the earlier releases that stored clicks (last_clicks).
_EARLIER_RULES = 2


def layout_digest(config: Config) -> str:
    """Returns a digest of the parsing rules and of the settings of all raw tables, except the paths.

    `items.missing` is no part of it either, because it does not change how rows are parsed.
    """
    settings = [_settings(table) if table else None for table in _tables(config)]
    return _digest(_RULES, config, settings)


def earlier_layout_digest(config: Config) -> str:
    """Returns the digest that an earlier release wrote for the same settings, with its rules of parsing.

    It is for rows that cannot be parsed again, because their raw log was deleted. If a setting is used that
    the earlier release did not have, the digest is none that it wrote.
    """
    settings = [_earlier_settings(table) if table else None for table in _tables(config)]
    return _digest(_EARLIER_RULES, config, settings)


def _tables(config: Config) -> list[RawTable | None]:
    return [config.log, config.users, config.items]


def _digest(rules: int, config: Config, settings: Sequence[dict[str, Any] | None]) -> str:
    keys = config.keys.model_dump() if config.keys else None
    prepare = [config.prepare] if config.prepare else []
    return digest_of([rules, *settings, keys, *prepare])


def _settings(table: RawTable) -> dict[str, Any]:
    """Returns the settings of a table. A default separator and the same separator written out are equal.

    Keys that did not exist in earlier releases are included only if they are set, so that the days which such
    a release has stored remain valid.
    """
    settings = table.model_dump(exclude={"path", "missing", "columns"})
    if table.time_zone == UTC:
        del settings["time_zone"]
    if isinstance(table, Log):
        of_numbers = {"column", "positive_at_least"} if table.label.positive is None else None
        settings["label"] = table.label.model_dump(include=of_numbers)
    columns = [_column_settings(column) for column in table.columns]
    return {**settings, "columns": columns, "separator": table.field_separator}


def _earlier_settings(table: RawTable) -> dict[str, Any]:
    """Returns the settings of a table without the keys that the earlier release did not have, if not set."""
    settings = _settings(table)
    if table.null_values == [""]:
        del settings["null_values"]
    for column in settings["columns"]:
        if not column["optional"]:
            del column["optional"]
    return settings


def _column_settings(column: Column) -> dict[str, Any]:
    settings = column.model_dump()
    if column.format == ISO:
        del settings["format"]
    if column.type in LIST_TYPES:
        settings["separator"] = column.element_separator
    else:
        del settings["separator"]
    return settings
