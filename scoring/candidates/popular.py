"""The source `popular`: proposes the items with the most clicks.

The clicks of all users count, or only the clicks of users in the same segment. If rows have weights, the
weights of the clicks are added up instead of counting the clicks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.lazy_imports import F, Window
from scoring.candidates.clicks import weight_of_clicks
from scoring.candidates.exclusions import Exclusions
from scoring.candidates.pairs_of_lists import pairs_of
from scoring.requests import CANDIDATES, EXCLUDED, ITEM_INDEX, LISTED, SCORES
from spark.rows import Rows, query
from storage.feature_spec import USER_KEY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SEGMENT = "segment"

# Maximum number of elements of a matrix with one row per user of a batch and one column per ranked item.
_MATRIX_ELEMENTS = 1 << 24


def popularity(rows: Rows, items: Rows) -> Rows:
    """Returns the number of clicks on each item: rows with the columns item_index and clicks (int64).

    A click is a row with label 1. If rows have weights, `clicks` is the sum of the weights of the clicks
    (float64).
    """
    text = f"""
        SELECT item_index, coalesce(clicks, 0) AS clicks
        FROM {{items}} AS items
        LEFT JOIN (
            SELECT item_key, {weight_of_clicks(rows)} AS clicks
            FROM {{rows}} WHERE label = 1 GROUP BY item_key
        ) AS clicked ON clicked.item_key = items.item_key
    """
    return query(text, rows=rows, items=items)


def popular_items(exclusions: Exclusions, popular: Rows, n: int) -> Rows:
    """Returns, for each user, the n most popular items that are not excluded, most popular first.

    The result has the columns user_key, candidates and scores. The popularity of an item is its number of
    clicks c, and its score is log(1 + c). If two items have equally many clicks, the item with the smaller
    index comes first. If x items are excluded for a user, the user's n items are among the n + x most popular
    ones. So the tasks receive only the n + x most popular items, for the largest x.

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
    """Implements `popular_items` for Arrow tables instead of Spark frames."""
    keys = [("clicks", "descending"), (ITEM_INDEX, "ascending")]
    ranking = popular.sort_by(keys).slice(0, n + exclusions.most)
    item = ranking.column(ITEM_INDEX).to_numpy()
    score = np.log1p(ranking.column("clicks").to_numpy()).astype(np.float32)
    place_of = np.full(1 + max(item.max(initial=-1), 0), -1)
    place_of[item] = np.arange(len(item))
    users: pa.Table = exclusions.users
    keys_of_users, of_users = (users.column(name).combine_chunks() for name in (USER_KEY, EXCLUDED))
    step = max(1, _MATRIX_ELEMENTS // max(len(item), 1))
    parts = [LISTED.empty_table()]
    for first in range(0, len(users), step):
        excluded_of = of_users.slice(first, step)
        row, excluded = pairs_of(excluded_of)
        kept = np.ones((len(excluded_of), len(item)), bool)
        ranked = excluded < len(place_of)
        row, place = row[ranked], place_of[excluded[ranked]]
        kept[row[place >= 0], place[place >= 0]] = False
        kept &= kept.cumsum(axis=1, dtype=np.int32) <= n
        chosen = kept.nonzero()[1]
        offsets = pa.array(np.concatenate([[0], kept.sum(axis=1).cumsum()]).astype(np.int32))
        lists = [pa.array(item[chosen].astype(np.int32)), pa.array(score[chosen])]
        columns = [pa.ListArray.from_arrays(offsets, values) for values in lists]
        part = [keys_of_users.slice(first, step), *columns]
        parts.append(pa.Table.from_arrays(part, schema=LISTED))
    return pa.concat_tables(parts).combine_chunks()


def popular_in_segment(exclusions: Exclusions, rows: Rows, items: Rows, segments: Rows, n: int) -> Rows:
    """Returns the same as popular_items, but counts only the clicks of users in the same segment.

    Items without clicks in the segment are left out. A user's list is empty if the user's segment is null or
    has no clicks.

    Args:
        exclusions: the excluded items of each user.
        rows: rows with the columns user_key, item_key and label.
        items: rows with the columns item_index and item_key, one row per item.
        segments: rows with the columns user_key and segment, one row per user.
        n: maximum length of a list.
    """
    known = query("SELECT user_key, segment FROM {segments} WHERE segment IS NOT NULL", segments=segments)
    text = f"""
        SELECT segment, item_index, clicks
        FROM (
            SELECT segment, item_key, {weight_of_clicks(rows)} AS clicks
            FROM {{rows}} JOIN {{known}} USING (user_key)
            WHERE label = 1
            GROUP BY segment, item_key
        ) AS counted
        JOIN {{items}} USING (item_key)
    """
    counted = query(text, rows=rows, known=known, items=items)
    if isinstance(counted, pa.Table):
        return _popular_in_segment_of_table(exclusions, counted, known, n)
    by_segment = Window.partitionBy(SEGMENT).orderBy(F.desc("clicks"), F.asc(ITEM_INDEX))
    ranked = counted.select(SEGMENT, ITEM_INDEX, "clicks", F.row_number().over(by_segment).alias("place"))
    rankings = ranked.where(F.col("place") <= n + exclusions.most).groupBy(SEGMENT).agg(*_in_order())
    return _with_scores(exclusions.users.join(known, USER_KEY, "left").join(rankings, SEGMENT, "left"), n)


def _popular_in_segment_of_table(
    exclusions: Exclusions, counted: pa.Table, known: pa.Table, n: int
) -> pa.Table:
    """Implements `popular_in_segment` for tables.

    Args:
        exclusions: the excluded items of each user.
        counted: the number of clicks by each segment on each item: segment, item_index and clicks.
        known: user_key and segment of the users with a segment.
        n: maximum length of a list.
    """
    users: pa.Table = exclusions.users
    users = users.combine_chunks()
    counted = counted.sort_by(SEGMENT).combine_chunks()
    names = counted.column(SEGMENT).combine_chunks()
    distinct, starts = np.unique(names.dictionary_encode().indices.to_numpy(), return_index=True)
    bounds = [*starts.tolist(), len(counted)]
    row = pc.index_in(users.column(USER_KEY), value_set=known.column(USER_KEY).combine_chunks())
    of_user = known.column(SEGMENT).combine_chunks().take(row.combine_chunks())
    codes = pc.index_in(of_user, value_set=names.take(pa.array(starts))).fill_null(len(distinct)).to_numpy()
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(len(distinct) + 1), side="right")
    parts, first = [], 0
    for number, end in enumerate(ends.tolist()):
        start, stop = (bounds[number], bounds[number + 1]) if number < len(distinct) else (0, 0)
        members = users.take(pa.array(order[first:end]))
        of_members = Exclusions(members, exclusions.most)
        parts.append(_popular_of_table(of_members, counted.slice(start, stop - start), n))
        first = end
    return pa.concat_tables(parts)


def allowed(ranking: Column, n: int) -> Column:
    """Returns the first n items of a ranking that are not in the column `excluded`.

    No item may occur twice in the ranking.
    """
    excluded = F.coalesce(EXCLUDED, F.array().cast("array<int>"))
    # If x items are excluded for a user, the user's n items are among the first n + x of the ranking. The
    # ranking is longer if other users have more excluded items.
    first = F.slice(ranking, F.lit(1), F.size(excluded) + n)
    return F.slice(F.array_except(first, excluded), 1, n)


def _in_order() -> list[Column]:
    """Returns aggregates that collect rows in the order of `place`: item indices (`ranking`) and scores."""
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
