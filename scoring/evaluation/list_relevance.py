"""Measures the relevance of a user's top-k list by what the user clicked afterwards: hits and NDCG."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
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


def user_relevance(lists: DataFrame, positives: DataFrame, k: int) -> DataFrame:
    """Returns the relevance of the list of each user who has a list and at least one positive.

    Args:
        lists: a frame with the columns user_key, position and item_key, one row per list entry. Positions
            count from 1.
        positives: a frame with the columns user_key and item_key: the distinct items that each user clicked
            later.
        k: maximum length of a list.

    Returns:
        A frame with the columns user_key, hits (number of positives in the list) and ndcg (decimal; Relevance
        describes it).
    """
    entries = lists.join(positives.withColumn("hit", F.lit(True)), [USER_KEY, ITEM_KEY], "left")
    listed = entries.groupBy(USER_KEY).agg(F.count("hit").alias("hits"), gain_of(F.col("hit")).alias("gain"))
    wanted = positives.groupBy(USER_KEY).agg(F.count(F.lit(1)).alias("wanted"))
    return listed.join(wanted, USER_KEY).select(USER_KEY, "hits", ndcg_of("gain", "wanted", k).alias("ndcg"))


def gain_of(is_hit: Column) -> Column:
    """Returns an aggregate: the discounted gain of the list entries for which `is_hit` is true (decimal).

    The gain of a hit at position p (the column `position`) is 1 / log2(p + 1).
    """
    gain = (1 / F.log2(F.col("position") + 1)).cast(_EXACT)
    return F.sum(F.when(is_hit, gain).otherwise(0))


def ndcg_of(gain: str, wanted: str, k: int) -> Column:
    """Returns the NDCG of a list (decimal).

    Args:
        gain: the column with the discounted gain of the list.
        wanted: the column with the number of positives of the user; null or 0 gives null.
        k: maximum length of a list.
    """
    gains = F.array(*(F.lit(ideal) for ideal in ideal_gains(k)))
    place = F.when(F.col(wanted) > 0, F.least(wanted, F.lit(k)).cast("int"))
    return (F.col(gain).cast("double") / F.element_at(gains, place)).cast(_EXACT)


def ideal_gains(k: int) -> list[float]:
    """Returns k numbers. Element n - 1 is the discounted gain of a list whose first n entries are hits."""
    gains, total = [], 0.0
    for position in range(1, k + 1):
        total += 1 / math.log2(position + 1)
        gains.append(total)
    return gains
