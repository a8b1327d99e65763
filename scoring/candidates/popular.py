"""The source `popular`: proposes the items with the most clicks.

The clicks of all users count, or only the clicks of users in the same segment.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from scoring.candidates.filters import Exclusions
from scoring.inputs.requests import CANDIDATES, EXCLUDED, ITEM_INDEX
from storage.feature_spec import ITEM_KEY, LABEL, USER_KEY

SEGMENT = "segment"


def popularity(rows: DataFrame, items: DataFrame) -> DataFrame:
    """Returns the number of clicks on each item: a frame with the columns item_index and clicks (int64).

    A click is a row with label 1.
    """
    clicks = rows.where(F.col(LABEL) == 1).groupBy(ITEM_KEY).agg(F.count(F.lit(1)).alias("clicks"))
    counted = items.select(ITEM_KEY, ITEM_INDEX).join(clicks, ITEM_KEY, "left")
    return counted.select(ITEM_INDEX, F.coalesce("clicks", F.lit(0)).alias("clicks"))


def popular_items(exclusions: Exclusions, popular: DataFrame, n: int) -> DataFrame:
    """Returns, for each user, the n most popular items that are not excluded, most popular first.

    The result has the columns user_key and candidates. The popularity of an item is its number of clicks. If
    two items have equally many clicks, the item with the smaller index comes first. If c items are excluded
    for a user, the n items are among the n + c most popular items. So only the first n + max(c) items are
    sent to the tasks.

    Args:
        exclusions: the excluded items of each user.
        popular: a frame with the columns item_index and clicks, as popularity() returns it.
        n: maximum length of a list.
    """
    place = F.row_number().over(Window.orderBy(F.desc("clicks"), F.asc(ITEM_INDEX)))
    ranked = popular.select(ITEM_INDEX, place.alias("place")).where(F.col("place") <= n + exclusions.most)
    ranking = ranked.agg(_in_order().alias("ranking"))
    listed = exclusions.users.crossJoin(F.broadcast(ranking))
    return listed.select(USER_KEY, allowed(F.col("ranking"), n).alias(CANDIDATES))


def popular_in_segment(
    exclusions: Exclusions, rows: DataFrame, items: DataFrame, segments: DataFrame, n: int
) -> DataFrame:
    """Does the same as popular_items, but counts only the clicks of users in the same segment.

    Items that no user of the segment clicked are left out. A user's list is empty if the user's segment is
    null or has no clicks.

    Args:
        exclusions: the excluded items of each user.
        rows: a frame with the columns user_key, item_key and label.
        items: a frame with the columns item_index and item_key, one row per item.
        segments: a frame with the columns user_key and segment, one row per user.
        n: maximum length of a list.
    """
    clicks = rows.where(F.col(LABEL) == 1).select(USER_KEY, ITEM_KEY)
    known = segments.where(F.col(SEGMENT).isNotNull()).select(USER_KEY, SEGMENT)
    counted = (
        clicks.join(known, USER_KEY)
        .groupBy(SEGMENT, ITEM_KEY)
        .agg(F.count(F.lit(1)).alias("clicks"))
        .join(items.select(ITEM_KEY, ITEM_INDEX), ITEM_KEY)
    )
    by_segment = Window.partitionBy(SEGMENT).orderBy(F.desc("clicks"), F.asc(ITEM_INDEX))
    ranked = counted.select(SEGMENT, ITEM_INDEX, F.row_number().over(by_segment).alias("place"))
    rankings = (
        ranked.where(F.col("place") <= n + exclusions.most).groupBy(SEGMENT).agg(_in_order().alias("ranking"))
    )
    listed = exclusions.users.join(known, USER_KEY, "left").join(rankings, SEGMENT, "left")
    ranking = F.coalesce("ranking", F.array().cast("array<int>"))
    return listed.select(USER_KEY, allowed(ranking, n).alias(CANDIDATES))


def allowed(ranking: Column, n: int) -> Column:
    """Returns the first n items of a ranking that are not in the column `excluded`.

    No item may occur twice in the ranking.
    """
    no_items = F.array().cast("array<int>")
    return F.slice(F.array_except(ranking, F.coalesce(EXCLUDED, no_items)), 1, n)


def _in_order() -> Column:
    """Returns an array of the item indices of a group, ordered by the column `place`."""
    return F.sort_array(F.collect_list(F.struct("place", ITEM_INDEX))).getField(ITEM_INDEX)
