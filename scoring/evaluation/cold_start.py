"""Measures lists for users and items that are new to the model: it was trained without their ids.

A user or item is new if its id feature has OOV_ID on the date of the lists. This is so if it first appeared
after the training, or had fewer train rows than `min_count` of its vocabulary. If no feature is the id of the
user or item alone, those without a row in the train split are new.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etl.workflow.feature_plan import plan_of
from etl.workflow.id_features import id_feature_of
from scoring.evaluation.list_relevance import Relevance
from scoring.evaluation.measured_lists import CLICKS, ITEMS, NO_ITEMS, ItemCounts, MeasuredLists
from spark.rows import Rows, query, quoted, read_rows
from storage.dataset import read_spec
from storage.feature_spec import ITEM_KEY, OOV_ID, USER_KEY
from storage.manifest import read_manifest
from storage.run_context import RunContext


def users_and_items(context: RunContext, version: str, train: Rows) -> tuple[Rows, Rows]:
    """Returns the users and the items of the run date's tables: their key, and whether they are `new`.

    Args:
        context: the context of the run. The section `keys` must be set.
        version: workflow version of the model that made the lists.
        train: rows with the user_key and item_key of the train split.
    """
    keys, lake = context.config.keys, context.lake
    if keys is None:
        raise ValueError("internal error, please report: the section keys is not set")
    feature_plan, spec = plan_of(context.config), read_spec(lake, version)
    known = {feature.name for feature in spec.categorical}
    sides = []
    for column, key, table in (
        (keys.user, USER_KEY, lake.users(version)),
        (keys.item, ITEM_KEY, lake.items(version)),
    ):
        partition = table.partition(context.run_date)
        feature = id_feature_of(feature_plan, column)
        columns = [key, feature] if feature in known else [key]
        rows = read_rows(context, partition, read_manifest(partition), columns=columns)
        if feature in known:
            sides.append(query(f"SELECT {key}, {quoted(feature)} = {OOV_ID} AS new FROM {{rows}}", rows=rows))
            continue
        marked = f"""
            SELECT rows.{key}, trained.{key} IS NULL AS new
            FROM {{rows}} AS rows
            LEFT JOIN (SELECT DISTINCT {key} FROM {{train}}) AS trained ON trained.{key} = rows.{key}
        """
        sides.append(query(marked, rows=rows, train=train))
    users, items = sides
    return users, items


def cold_start_facts(
    measured: Mapping[str, MeasuredLists], items: Mapping[str, ItemCounts], published: str
) -> dict[str, Any]:
    """Returns the figures of new users, known users and new items, for each kind of lists.

    Args:
        measured: maps the name of each kind of lists to its figures.
        items: the result of `count_items` for the same lists.
        published: the name of the published lists.

    Returns:
        A dictionary with the keys `new_users`, `known_users` and `new_items`. Each has `users`, and for each
        kind of lists `hit_rate` and `ndcg`. `new_items` also has `items`, the number of new items;
        `position_share`, the share of list entries whose item is new; and `click_share`, the share of clicks
        on new items among the clicks on all items.
    """
    facts: dict[str, Any] = {}
    for group in ("new_users", "known_users", "new_items"):
        of_kind: dict[str, Relevance] = {kind: getattr(lists, group) for kind, lists in measured.items()}
        figures = {kind: {"hit_rate": found.hit_rate, "ndcg": found.ndcg} for kind, found in of_kind.items()}
        facts[group] = {"users": of_kind[published].users, **figures}
    facts["new_items"] |= {
        "items": items.get(ITEMS, NO_ITEMS).new,
        "position_share": items.get(published, NO_ITEMS).new_share,
        "click_share": items.get(CLICKS, NO_ITEMS).new_share,
    }
    return facts
