"""Retrieval: which items each user is scored against, as indices into candidate_items.

`candidates` is an array of item indices, null where every item but those of `excluded` is one. So the common case of
all items costs a few bytes a user, not a list of the catalogue.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from conf.feature_spec import ITEM_KEY, LABEL, USER_KEY
from conf.types import Candidates
from scoring.contract import CANDIDATES, EXCLUDED, ITEM_INDEX

# What of a feature table retrieval reads.
CLICK_COLUMNS = (USER_KEY, ITEM_KEY, LABEL)


def number_items(items: DataFrame) -> DataFrame:
    """items plus item_index (int32, 0..n-1 in the order of item_key), as the first column.

    One task numbers them all: items fit one device, or they could not be gathered there to be scored.
    """
    order = F.row_number().over(Window.orderBy(F.asc(ITEM_KEY)))
    return items.select((order - 1).alias(ITEM_INDEX), *items.columns)


def clicked_items(rows: DataFrame, items: DataFrame) -> DataFrame:
    """Who clicked what: distinct (user_key, item_index) of the rows with label 1 whose item is one of `items`."""
    clicks = rows.where(F.col(LABEL) == 1).select(USER_KEY, ITEM_KEY)
    return clicks.join(items.select(ITEM_KEY, ITEM_INDEX), ITEM_KEY).select(USER_KEY, ITEM_INDEX).distinct()


def popularity(rows: DataFrame, items: DataFrame) -> DataFrame:
    """Every item with its clicks: (item_index, clicks int64); clicks are rows with label 1, 0 where there are none."""
    clicks = rows.where(F.col(LABEL) == 1).groupBy(ITEM_KEY).agg(F.count(F.lit(1)).alias("clicks"))
    counted = items.select(ITEM_KEY, ITEM_INDEX).join(clicks, ITEM_KEY, "left")
    return counted.select(ITEM_INDEX, F.coalesce("clicks", F.lit(0)).alias("clicks"))


def all_items(users: DataFrame, clicked: DataFrame | None) -> DataFrame:
    """(user_key, candidates null, excluded): every item but those the user clicked; excluded is null for none."""
    nothing = F.lit(None).cast("array<int>")
    return _with_clicked(users, clicked).select(USER_KEY, nothing.alias(CANDIDATES), EXCLUDED)


def popular_items(users: DataFrame, popular: DataFrame, clicked: DataFrame | None, n: int) -> DataFrame:
    """(user_key, candidates, excluded null): the n most popular items the user has not clicked, most popular first.

    Popularity descends by clicks, ties by item index. A user with c clicked items finds n others among the n + c most
    popular, so that much of the ranking goes to every task and no more.

    Args:
        popular: (item_index, clicks), as of popularity().
        clicked: (user_key, item_index), distinct; None excludes nothing.
    """
    excluding = _with_clicked(users, clicked)
    most_clicked = excluding.agg(F.greatest(F.max(F.size(EXCLUDED)), F.lit(0)).alias("most"))
    place = F.row_number().over(Window.orderBy(F.desc("clicks"), F.asc(ITEM_INDEX)))
    ranked = popular.select(ITEM_INDEX, place.alias("place")).crossJoin(F.broadcast(most_clicked))
    ranking = ranked.where(F.col("place") <= F.lit(n) + F.col("most")).agg(
        F.sort_array(F.collect_list(F.struct("place", ITEM_INDEX))).getField(ITEM_INDEX).alias("ranking")
    )
    unseen = F.array_except("ranking", F.coalesce(EXCLUDED, F.array().cast("array<int>")))
    nothing = F.lit(None).cast("array<int>")
    return excluding.crossJoin(F.broadcast(ranking)).select(
        USER_KEY, F.slice(unseen, 1, n).alias(CANDIDATES), nothing.alias(EXCLUDED)
    )


def make_candidates(
    config: Candidates, users: DataFrame, items: DataFrame, train: DataFrame, clicked: DataFrame | None
) -> DataFrame:
    """One row a user: (user_key, candidates array<int>, excluded array<int>).

    Args:
        items: numbered, with item_key.
        train: user_key, item_key, label of the train split; its clicks are what popularity counts.
        clicked: (user_key, item_index) to exclude, distinct; None excludes nothing.
    """
    if config.strategy == "all_items":
        return all_items(users, clicked)
    return popular_items(users, popularity(train, items), clicked, config.n)


def _with_clicked(users: DataFrame, clicked: DataFrame | None) -> DataFrame:
    """(user_key, excluded): item indices each user clicked, ascending; null for none."""
    if clicked is None:
        return users.select(USER_KEY, F.lit(None).cast("array<int>").alias(EXCLUDED))
    lists = clicked.groupBy(USER_KEY).agg(F.sort_array(F.collect_list(ITEM_INDEX)).alias(EXCLUDED))
    return users.select(USER_KEY).join(lists, USER_KEY, "left")
