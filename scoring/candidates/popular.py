"""The items with most clicks, of all users or of those who share an attribute."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from scoring.candidates.filters import Exclusions
from scoring.inputs.requests import CANDIDATES, EXCLUDED, ITEM_INDEX
from storage.feature_spec import ITEM_KEY, LABEL, USER_KEY

SEGMENT = "segment"


def popularity(rows: DataFrame, items: DataFrame) -> DataFrame:
    """Every item with its clicks: (item_index, clicks int64); clicks are rows with label 1, 0 where there are none."""
    clicks = rows.where(F.col(LABEL) == 1).groupBy(ITEM_KEY).agg(F.count(F.lit(1)).alias("clicks"))
    counted = items.select(ITEM_KEY, ITEM_INDEX).join(clicks, ITEM_KEY, "left")
    return counted.select(ITEM_INDEX, F.coalesce("clicks", F.lit(0)).alias("clicks"))


def popular_items(excluding: Exclusions, popular: DataFrame, n: int) -> DataFrame:
    """(user_key, candidates): the n most popular items that are not excluded for the user, most popular first.

    Popularity descends by clicks, ties by item index. A user with c excluded items finds n others among the n + c most
    popular, so that much of the ranking goes to every task and no more.

    Args:
        popular: (item_index, clicks), as of popularity().
    """
    place = F.row_number().over(Window.orderBy(F.desc("clicks"), F.asc(ITEM_INDEX)))
    ranked = popular.select(ITEM_INDEX, place.alias("place")).where(F.col("place") <= n + excluding.most)
    ranking = ranked.agg(_in_order().alias("ranking"))
    listed = excluding.users.crossJoin(F.broadcast(ranking))
    return listed.select(USER_KEY, allowed(F.col("ranking"), n).alias(CANDIDATES))


def popular_in_segment(
    excluding: Exclusions, rows: DataFrame, items: DataFrame, segments: DataFrame, n: int
) -> DataFrame:
    """(user_key, candidates): as popular_items, by the clicks of the user's own segment; items none of them clicked are left out.

    A user whose segment is null, or without clicks, gets an empty list.

    Args:
        rows: user_key, item_key, label.
        segments: (user_key, segment), one row a user.
    """
    clicks = rows.where(F.col(LABEL) == 1).select(USER_KEY, ITEM_KEY)
    known = segments.where(F.col(SEGMENT).isNotNull()).select(USER_KEY, SEGMENT)
    counted = (
        clicks.join(known, USER_KEY)
        .groupBy(SEGMENT, ITEM_KEY)
        .agg(F.count(F.lit(1)).alias("clicks"))
        .join(items.select(ITEM_KEY, ITEM_INDEX), ITEM_KEY)
    )
    within = Window.partitionBy(SEGMENT).orderBy(F.desc("clicks"), F.asc(ITEM_INDEX))
    ranked = counted.select(SEGMENT, ITEM_INDEX, F.row_number().over(within).alias("place"))
    rankings = (
        ranked.where(F.col("place") <= n + excluding.most).groupBy(SEGMENT).agg(_in_order().alias("ranking"))
    )
    listed = excluding.users.join(known, USER_KEY, "left").join(rankings, SEGMENT, "left")
    ranking = F.coalesce("ranking", F.array().cast("array<int>"))
    return listed.select(USER_KEY, allowed(ranking, n).alias(CANDIDATES))


def allowed(ranking: Column, n: int) -> Column:
    """The first n of a ranking without repeats that are not in `excluded`."""
    nothing = F.array().cast("array<int>")
    return F.slice(F.array_except(ranking, F.coalesce(EXCLUDED, nothing)), 1, n)


def _in_order() -> Column:
    """The item indices of a group by `place`."""
    return F.sort_array(F.collect_list(F.struct("place", ITEM_INDEX))).getField(ITEM_INDEX)
