"""Measures the relevance of top-k lists by what users clicked afterwards: hit rate, NDCG and coverage."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from storage.feature_spec import ITEM_KEY, USER_KEY

# Decimals add up to the same sum in any order.
_EXACT = "decimal(18,15)"


@dataclass(frozen=True)
class Relevance:
    """The relevance of the lists of one group of users.

    A positive of a user is an item that the user clicked after the list was made.

    Attributes:
        users: number of users who have a list and at least one positive. The other attributes are about these
            users.
        hit_rate: share of the users who have at least one positive in their list; None if there are no users.
        ndcg: mean NDCG of the users with binary relevance (Järvelin and Kekäläinen 2002). The ideal list has
            min(k, number of positives) hits. None if there are no users.
    """

    users: int
    hit_rate: float | None
    ndcg: float | None


def measure_lists(lists: DataFrame, positives: DataFrame, warm: DataFrame, k: int) -> dict[bool, Relevance]:
    """Returns the relevance of top-k lists for warm users (key True) and for cold users (key False).

    Args:
        lists: a frame with the columns user_key, position and item_key, one row per list entry. Positions
            count from 1.
        positives: a frame with the columns user_key and item_key: the distinct items that each user clicked
            later.
        warm: a frame with the distinct user_key of the warm users. All other users are cold.
        k: maximum length of a list.
    """
    users = user_relevance(lists, positives, k).join(warm.withColumn("warm", F.lit(True)), USER_KEY, "left")
    measured = (
        users.groupBy(F.coalesce("warm", F.lit(False)).alias("warm"))
        .agg(
            F.count(F.lit(1)).alias("users"),
            F.count(F.when(F.col("hits") > 0, 1)).alias("hit"),
            F.sum("ndcg").alias("ndcg"),
        )
        .collect()
    )
    no_users = Relevance(0, None, None)
    by_group = {
        row["warm"]: Relevance(row["users"], row["hit"] / row["users"], float(row["ndcg"]) / row["users"])
        for row in measured
    }
    return {group: by_group.get(group, no_users) for group in (True, False)}


def user_relevance(lists: DataFrame, positives: DataFrame, k: int) -> DataFrame:
    """Returns the relevance of the list of each user who has a list and at least one positive.

    The columns are user_key, hits (number of positives in the list) and ndcg (decimal; Relevance describes
    it). The arguments are those of `measure_lists`.
    """
    gain = (1 / F.log2(F.col("position") + 1)).cast(_EXACT)
    entries = lists.join(positives.withColumn("hit", F.lit(1)), [USER_KEY, ITEM_KEY], "left")
    listed = entries.groupBy(USER_KEY).agg(
        F.count("hit").alias("hits"), F.sum(F.when(F.col("hit") == 1, gain).otherwise(0)).alias("gain")
    )
    ideal = F.element_at(
        F.array(*(F.lit(ideal_gain) for ideal_gain in ideal_gains(k))),
        F.least("wanted", F.lit(k)).cast("int"),
    )
    wanted = positives.groupBy(USER_KEY).agg(F.count(F.lit(1)).alias("wanted"))
    ndcg = (F.col("gain").cast("double") / ideal).cast(_EXACT).alias("ndcg")
    return listed.join(wanted, USER_KEY).select(USER_KEY, "hits", ndcg)


def ideal_gains(k: int) -> list[float]:
    """Returns k numbers. Element n - 1 is the discounted gain of a list whose first n entries are hits."""
    gains, total = [], 0.0
    for position in range(1, k + 1):
        total += 1 / math.log2(position + 1)
        gains.append(total)
    return gains


def coverage(lists: DataFrame, items: int) -> float:
    """Returns the share of the items that are in at least one list; 0 if there are no items."""
    listed = lists.agg(F.countDistinct(ITEM_KEY).alias("listed")).collect()[0]["listed"]
    return listed / items if items else 0.0
