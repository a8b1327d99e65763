"""Measures several kinds of lists at once: hit rate and NDCG of groups of users, and which items are listed.

All kinds and all groups are measured by two Spark queries, because a query over a small lake costs about half
a second, however few rows it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from scoring.evaluation.list_relevance import Relevance, gain_of, ndcg_of
from storage.feature_spec import ITEM_KEY, USER_KEY

KIND, NEW = "kind", "new"
# Names beside those of the kinds of lists in the result of `count_items`.
CLICKS, ITEMS = "clicks", "items"

_GROUPS = ("warm", "cold", "new_users", "known_users", "new_items")


@dataclass(frozen=True)
class MeasuredLists:
    """The relevance of one kind of lists, for groups of users.

    Attributes:
        warm, cold: users with and without a row in the train split.
        new_users, known_users: users who are new to the model, and all others of the table `users`.
        new_items: the relevance if only clicks on new items count as positives. The users are those of the
            table `users` with such a click.
    """

    warm: Relevance
    cold: Relevance
    new_users: Relevance
    known_users: Relevance
    new_items: Relevance


@dataclass(frozen=True)
class ItemCounts:
    """Counts of items in some rows.

    Attributes:
        distinct: number of distinct items.
        new: number of rows with an item that is new to the model.
        new_share: the share of these rows among the rows with an item of the table `items`; None without such
            rows.
    """

    distinct: int
    new: int
    new_share: float | None


_NOBODY = Relevance(0, None, None)
NO_LISTS = MeasuredLists(*[_NOBODY] * len(_GROUPS))
NO_ITEMS = ItemCounts(0, 0, None)


def measure_kinds(
    lists: DataFrame, positives: DataFrame, warm: DataFrame, users: DataFrame, items: DataFrame, k: int
) -> dict[str, MeasuredLists]:
    """Returns the relevance of each kind of lists. A kind without any user has no entry.

    Args:
        lists: a frame with the columns kind, user_key, position and item_key, one row per list entry.
            Positions count from 1.
        positives: a frame with the columns user_key and item_key: the distinct items that each user clicked
            later.
        warm: a frame with the distinct user_key of the users with a row in the train split.
        users: a frame with user_key and `new` (boolean), one row per user.
        items: a frame with item_key and `new` (boolean), one row per item.
        k: maximum length of a list.
    """
    new_items = items.where(NEW).select(ITEM_KEY, F.lit(True).alias("new_hit"))
    marked = positives.join(F.broadcast(new_items), ITEM_KEY, "left").withColumn("hit", F.lit(True))
    wanted = (
        marked.groupBy(USER_KEY)
        .agg(F.count(F.lit(1)).alias("wanted"), F.count("new_hit").alias("new_wanted"))
        .join(warm.select(USER_KEY, F.lit(True).alias("warm")), USER_KEY, "left")
        .join(users.select(USER_KEY, NEW), USER_KEY, "left")
        .withColumn("warm", F.coalesce("warm", F.lit(False)))
    )
    listed = (
        lists.join(marked, [USER_KEY, ITEM_KEY], "left")
        .groupBy(KIND, USER_KEY)
        .agg(
            F.count("hit").alias("hits"),
            gain_of(F.col("hit")).alias("gain"),
            F.count("new_hit").alias("new_hits"),
            gain_of(F.col("new_hit")).alias("new_gain"),
        )
    )
    measured = (
        listed.join(wanted, USER_KEY)
        .withColumn("ndcg", ndcg_of("gain", "wanted", k))
        .withColumn("new_ndcg", ndcg_of("new_gain", "new_wanted", k))
    )
    sums = [
        *_sums("warm", F.col("warm"), "hits", "ndcg"),
        *_sums("cold", ~F.col("warm"), "hits", "ndcg"),
        *_sums("new_users", F.col(NEW), "hits", "ndcg"),
        *_sums("known_users", ~F.col(NEW), "hits", "ndcg"),
        *_sums("new_items", F.col(NEW).isNotNull() & (F.col("new_wanted") > 0), "new_hits", "new_ndcg"),
    ]
    rows = measured.groupBy(KIND).agg(*sums).collect()
    return {row[KIND]: MeasuredLists(*(_relevance(row.asDict(), name) for name in _GROUPS)) for row in rows}


def count_items(lists: DataFrame, positives: DataFrame, items: DataFrame) -> dict[str, ItemCounts]:
    """Returns counts of the items in each kind of lists, in the clicks (CLICKS) and in all items (ITEMS).

    The arguments are those of `measure_kinds`. A name without any row has no entry.
    """
    rows = (
        lists.select(KIND, ITEM_KEY)
        .unionByName(positives.select(F.lit(CLICKS).alias(KIND), ITEM_KEY))
        .unionByName(items.select(F.lit(ITEMS).alias(KIND), ITEM_KEY))
    )
    counts = rows.groupBy(KIND, ITEM_KEY).agg(F.count(F.lit(1)).alias("rows")).join(items, ITEM_KEY, "left")
    known, new = F.col(NEW).isNotNull(), F.coalesce(NEW, F.lit(False))
    sums = counts.groupBy(KIND).agg(
        F.count(F.lit(1)).alias("distinct"),
        F.sum(F.when(known, F.col("rows")).otherwise(0)).alias("known"),
        F.sum(F.when(new, F.col("rows")).otherwise(0)).alias("new"),
    )
    return {
        row[KIND]: ItemCounts(
            row["distinct"], row["new"], row["new"] / row["known"] if row["known"] else None
        )
        for row in sums.collect()
    }


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
        return _NOBODY
    return Relevance(users, sums[f"{name}_hits"] / users, float(sums[f"{name}_ndcg"]) / users)
