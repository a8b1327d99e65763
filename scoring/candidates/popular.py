"""The source `popular`: proposes the items with the most clicks.

The clicks of all users count, or only the clicks of users in the same segment. If rows have weights, the sum
of the weights of the clicks takes the place of their number.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from scoring.candidates.clicks import has_weights, weight_of_clicks
from scoring.candidates.filters import Exclusions
from scoring.candidates.pairs_of_lists import pairs_of
from scoring.inputs.requests import CANDIDATES, EXCLUDED, ITEM_INDEX, SCORES
from spark.rows import Rows, query
from storage.feature_spec import ITEM_KEY, LABEL, USER_KEY

SEGMENT = "segment"


def popularity(rows: Rows, items: Rows) -> Rows:
    """Returns the number of clicks on each item: rows with the columns item_index and clicks (int64).

    A click is a row with label 1. If rows have weights, `clicks` is the sum of the weights of the clicks
    (float64).
    """
    text = """
        SELECT item_index, coalesce(clicks, 0) AS clicks
        FROM {items} AS items
        LEFT JOIN (
            SELECT item_key, count(1) AS clicks FROM {rows} WHERE label = 1 GROUP BY item_key
        ) AS clicked ON clicked.item_key = items.item_key
    """
    if has_weights(rows):
        text = text.replace("count(1)", "sum(CAST(weight AS DOUBLE))")
    return query(text, rows=rows, items=items)


def popular_items(exclusions: Exclusions, popular: Rows, n: int) -> Rows:
    """Returns, for each user, the n most popular items that are not excluded, most popular first.

    The result has the columns user_key, candidates and scores. The popularity of an item is its number of
    clicks c, and its score is log(1 + c). If two items have equally many clicks, the item with the smaller
    index comes first. If x items are excluded for a user, the n items are among the n + x most popular items.
    So only the first n + max(x) items are sent to the tasks.

    Args:
        exclusions: the excluded items of each user.
        popular: rows with the columns item_index and clicks, as popularity() returns it.
        n: maximum length of a list.
    """
    if isinstance(popular, pa.Table):
        return _popular_of_table(exclusions, popular, n)
    place = F.row_number().over(Window.orderBy(F.desc("clicks"), F.asc(ITEM_INDEX)))
    ranked = popular.select(ITEM_INDEX, "clicks", place.alias("place"))
    ranking = ranked.where(F.col("place") <= n + exclusions.most).agg(*_in_order())
    return _with_scores(exclusions.users.crossJoin(F.broadcast(ranking)), n)


def _popular_of_table(exclusions: Exclusions, popular: pa.Table, n: int) -> pa.Table:
    """Does the work of `popular_items` for tables."""
    keys = [("clicks", "descending"), (ITEM_INDEX, "ascending")]
    ranking = popular.sort_by(keys).slice(0, n + exclusions.most)
    item = ranking.column(ITEM_INDEX).to_numpy()
    score = np.log1p(ranking.column("clicks").to_numpy()).astype(np.float32)
    place_of = np.full(1 + max(item.max(initial=-1), 0), -1)
    place_of[item] = np.arange(len(item))
    users: pa.Table = exclusions.users
    users = users.combine_chunks()
    row, excluded = pairs_of(users.column(EXCLUDED).combine_chunks())
    kept = np.ones((len(users), len(item)), bool)
    ranked = excluded < len(place_of)
    row, place = row[ranked], place_of[excluded[ranked]]
    kept[row[place >= 0], place[place >= 0]] = False
    kept &= kept.cumsum(axis=1) <= n
    chosen = kept.nonzero()[1]
    offsets = pa.array(np.concatenate([[0], kept.sum(axis=1).cumsum()]).astype(np.int32))
    lists = [pa.array(item[chosen].astype(np.int32)), pa.array(score[chosen])]
    columns = [pa.ListArray.from_arrays(offsets, values) for values in lists]
    return pa.Table.from_arrays([users.column(USER_KEY), *columns], [USER_KEY, CANDIDATES, SCORES])


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
    clicks = rows.where(F.col(LABEL) == 1)
    known = segments.where(F.col(SEGMENT).isNotNull()).select(USER_KEY, SEGMENT)
    counted = (
        clicks.join(known, USER_KEY)
        .groupBy(SEGMENT, ITEM_KEY)
        .agg(weight_of_clicks(rows).alias("clicks"))
        .join(items.select(ITEM_KEY, ITEM_INDEX), ITEM_KEY)
    )
    by_segment = Window.partitionBy(SEGMENT).orderBy(F.desc("clicks"), F.asc(ITEM_INDEX))
    ranked = counted.select(SEGMENT, ITEM_INDEX, "clicks", F.row_number().over(by_segment).alias("place"))
    rankings = ranked.where(F.col("place") <= n + exclusions.most).groupBy(SEGMENT).agg(*_in_order())
    return _with_scores(exclusions.users.join(known, USER_KEY, "left").join(rankings, SEGMENT, "left"), n)


def allowed(ranking: Column, n: int) -> Column:
    """Returns the first n items of a ranking that are not in the column `excluded`.

    No item may occur twice in the ranking.
    """
    no_items = F.array().cast("array<int>")
    return F.slice(F.array_except(ranking, F.coalesce(EXCLUDED, no_items)), 1, n)


def _in_order() -> list[Column]:
    """Returns the item indices of a group (`ranking`) and their scores, ordered by the column `place`."""
    score = F.log1p("clicks").cast("float").alias(SCORES)
    entries = F.sort_array(F.collect_list(F.struct("place", ITEM_INDEX, score)))
    return [
        entries.getField(ITEM_INDEX).alias("ranking"),
        entries.getField(SCORES).alias("ranking_scores"),
    ]


def _with_scores(listed: DataFrame, n: int) -> DataFrame:
    """Returns the lists of users, with the score of each item.

    Args:
        listed: a frame with the columns user_key, excluded, ranking and ranking_scores. The last two are null
            for a user without a ranking.
        n: maximum length of a list.
    """
    ranking = F.coalesce("ranking", F.array().cast("array<int>"))
    lists = listed.select(USER_KEY, allowed(ranking, n).alias(CANDIDATES), "ranking", "ranking_scores")

    def score_of(item: Column) -> Column:
        place = F.call_function("array_position", F.col("ranking"), item).cast("int")
        return F.call_function("element_at", F.col("ranking_scores"), place)

    return lists.select(USER_KEY, CANDIDATES, F.transform(CANDIDATES, score_of).alias(SCORES))
