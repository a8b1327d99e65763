"""Measures lists for users and items that are new to the model: it was trained without their ids.

A user or item is new if its id feature has OOV_ID on the date of the lists. This is so if it first appeared
after the training, or had fewer train rows than `min_count` of its vocabulary. If no feature is the id of the
user or item alone, those without a row in the train split are new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from etl.workflow.feature_plan import plan
from etl.workflow.id_features import id_feature_of
from scoring.evaluation.list_relevance import Relevance, user_relevance
from storage.dataset import read_spec
from storage.feature_spec import ITEM_KEY, OOV_ID, USER_KEY
from storage.manifest import read_manifest
from storage.publish import rows_of
from storage.run_context import RunContext

NEW = "new"


@dataclass(frozen=True)
class ColdStart:
    """The relevance of one kind of lists, with new users and new items apart.

    Attributes:
        new_users, known_users: the relevance of the lists of these users.
        new_items: the relevance if only clicks on new items count as positives. The users are those with such
            a click.
    """

    new_users: Relevance
    known_users: Relevance
    new_items: Relevance


def users_and_items(context: RunContext, version: str, train: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Returns the users and the items of the run date's tables: their key, and whether they are `new`.

    Args:
        context: the context of the run. The section `keys` must be set.
        version: workflow version of the model that made the lists.
        train: a frame with the user_key and item_key of the rows of the train split.
    """
    keys, lake = context.config.keys, context.lake
    if keys is None:
        raise ValueError("internal error, please report: the section keys is not set")
    feature_plan, spec = plan(context.config), read_spec(lake, version)
    known = {feature.name for feature in spec.categorical}
    frames = []
    for column, key, table in (
        (keys.user, USER_KEY, lake.users(version)),
        (keys.item, ITEM_KEY, lake.items(version)),
    ):
        partition = table.partition(context.run_date)
        feature = id_feature_of(feature_plan, column)
        columns = [key, feature] if feature in known else [key]
        rows = rows_of(context.spark, partition, read_manifest(partition), columns=columns)
        if feature in known:
            frames.append(rows.select(key, (F.col(feature) == OOV_ID).alias(NEW)))
        else:
            in_train = train.select(key).distinct().withColumn("in_train", F.lit(True))
            frames.append(rows.join(in_train, key, "left").select(key, F.col("in_train").isNull().alias(NEW)))
    users, items = frames
    return users, items


def measure_cold_start(
    lists: DataFrame, positives: DataFrame, users: DataFrame, items: DataFrame, k: int
) -> ColdStart:
    """Returns the relevance of top-k lists, with new users and new items apart.

    Args:
        lists: a frame with the columns user_key, position and item_key, one row per list entry.
        positives: a frame with the columns user_key and item_key: the distinct items that each user clicked
            later.
        users, items: as `users_and_items` returns them.
        k: maximum length of a list.
    """
    on_new = positives.join(F.broadcast(items.where(NEW)), ITEM_KEY, "left_semi")
    of_all = user_relevance(lists, positives, k)
    of_new = user_relevance(lists, on_new, k)
    of_new = of_new.select(USER_KEY, F.col("hits").alias("new_hits"), F.col("ndcg").alias("new_ndcg"))
    joined = of_all.join(of_new, USER_KEY, "left").join(users, USER_KEY)
    sums = [
        *_sums("new_users", F.col(NEW), "hits", "ndcg"),
        *_sums("known_users", ~F.col(NEW), "hits", "ndcg"),
        *_sums("new_items", F.col("new_hits").isNotNull(), "new_hits", "new_ndcg"),
    ]
    row = joined.agg(*sums).collect()[0]
    return ColdStart(*(_relevance(row.asDict(), name) for name in ("new_users", "known_users", "new_items")))


def _sums(name: str, chosen: Column, hits: str, ndcg: str) -> list[Column]:
    """Returns the sums over the chosen users, from which `_relevance` computes the means."""
    return [
        F.count(F.when(chosen, 1)).alias(f"{name}_users"),
        F.count(F.when(chosen & (F.col(hits) > 0), 1)).alias(f"{name}_hits"),
        F.sum(F.when(chosen, F.col(ndcg))).alias(f"{name}_ndcg"),
    ]


def _relevance(sums: Mapping[str, Any], name: str) -> Relevance:
    users = sums[f"{name}_users"]
    if not users:
        return Relevance(0, None, None)
    return Relevance(users, sums[f"{name}_hits"] / users, float(sums[f"{name}_ndcg"]) / users)


def cold_start_facts(
    measured: Mapping[str, ColdStart], lists: DataFrame, positives: DataFrame, items: DataFrame
) -> dict[str, Any]:
    """Returns the figures of new users, known users and new items, for each kind of lists.

    Args:
        measured: maps the name of each kind of lists to its figures. `lists` are the published ones.
        lists: the published lists, a frame with the column item_key, one row per list entry.
        positives: a frame with the column item_key, one row per user and clicked item.
        items: as `users_and_items` returns it.

    Returns:
        A dictionary with the keys `new_users`, `known_users` and `new_items`. Each has `users`, and for each
        kind of lists `hit_rate` and `ndcg`. `new_items` also has `items`, the number of new items;
        `position_share`, the share of list entries whose item is new; and `click_share`, the share of clicks
        on new items among the clicks on all `items`.
    """
    facts: dict[str, Any] = {}
    for group in ("new_users", "known_users", "new_items"):
        of_kind = {kind: asdict(getattr(figures, group)) for kind, figures in measured.items()}
        users = next(iter(of_kind.values()))["users"]
        figures = {kind: {"hit_rate": v["hit_rate"], "ndcg": v["ndcg"]} for kind, v in of_kind.items()}
        facts[group] = {"users": users, **figures}
    facts["new_items"] |= {
        "items": items.where(NEW).count(),
        "position_share": _share_of_new(lists, items),
        "click_share": _share_of_new(positives, items),
    }
    return facts


def _share_of_new(rows: DataFrame, items: DataFrame) -> float | None:
    """Returns the share of rows with a new item among the rows with one of the items; None without rows."""
    counts = rows.groupBy(ITEM_KEY).agg(F.count(F.lit(1)).alias("rows")).join(items, ITEM_KEY)
    sums = counts.agg(F.sum("rows").alias("rows"), F.sum(F.when(F.col(NEW), F.col("rows"))).alias(NEW))
    row = sums.collect()[0]
    return (row[NEW] or 0) / row["rows"] if row["rows"] else None
