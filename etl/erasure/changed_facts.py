"""The facts in manifests that change when users are erased: numbers of users, most frequent ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from etl.erasure.table_rules import USER_ID
from storage.manifest import Manifest

_HIDDEN = "(erased)"


def without_ids(facts: Mapping[str, Any], ids: frozenset[str], column: str) -> dict[str, Any]:
    """Returns the facts of a profile or data report, without the ids of users among the values of a column.

    Args:
        facts: the facts. Their key `columns` has the figures of the columns.
        ids: the ids of the users.
        column: the raw column with the ids of users.
    """
    columns = facts.get("columns")
    if isinstance(columns, Mapping) and column in columns:
        return {**facts, "columns": {**columns, column: _hidden(columns[column], ids)}}
    if isinstance(columns, list):
        hidden = [_hidden(entry, ids) if _is_of(entry, column) else entry for entry in columns]
        return {**facts, "columns": hidden}
    return dict(facts)


def _is_of(entry: Any, column: str) -> bool:
    return isinstance(entry, Mapping) and entry.get("name") == column


def _hidden(value: Any, ids: frozenset[str]) -> Any:
    """Returns a JSON value in which each text that is an id is replaced."""
    if isinstance(value, Mapping):
        return {key: _hidden(inner, ids) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(inner, ids) for inner in value]
    return _HIDDEN if isinstance(value, str) and value in ids else value


def lists_without(manifest: Manifest, with_list: pa.Table, users: frozenset[str]) -> Manifest:
    """Returns the manifest of lists with the numbers of users that remain.

    Args:
        manifest: the manifest of a date of `recommendations`.
        with_list: the removed rows, with the column user_id.
        users: the erased users of the run. Those without rows in `with_list` had no list.
    """
    facts = dict(manifest.facts)
    entries = pc.value_counts(with_list[USER_ID])
    short = sum(entry["counts"].as_py() < facts.get("k", 0) for entry in entries)
    without = users - set(with_list[USER_ID].to_pylist())
    for name, lost in (
        ("users", len(entries) + len(without)),
        ("users_without", len(without)),
        ("users_with_fewer", short + len(without)),
    ):
        if name in facts:
            facts[name] = int(facts[name]) - lost
    return replace(manifest, facts=facts)
