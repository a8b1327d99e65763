"""The source `covisitation`: proposes items clicked by users who clicked the same items as this user.

The method uses a matrix of clicks with one row per user and one column per item. In the row of a user, the
last `clicks_per_user` distinct items that the user clicked have the value 1. Rows are scaled to unit length,
so that users with many clicks do not count more than others. The similarity of two items is the cosine of
their columns (M. Deshpande, G. Karypis, Item-Based Top-N Recommendation Algorithms, ACM TOIS 22(1), 2004,
sections 4.1 and 4.3):

    sim(i, j) = Σ_u w_u [u clicked i and j] / √(Σ_u w_u [u clicked i] · Σ_u w_u [u clicked j])

Here w_u is 1 / (number of items in the row of user u), and [condition] is 1 if the condition is true, else 0.
For each item i, only the `neighbours` most similar items are used. A user's score of item j is the sum of
sim(i, j) over those of the user's items i that have j among these most similar items.

Weights are stored as integers in units of 2⁻²⁴, and similarities as integers in units of 2⁻³⁰. Therefore all
sums are exact, and the same log gives the same lists, however Spark partitions the rows. A user adds at most
clicks_per_user² / 2 pairs of items. Before the shuffle, each task adds up the weights of equal pairs.

The neighbours are published as a table. Workers read it and make the lists (neighbour_lists.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from conf.types import Covisitation
from scoring.candidates.clicks import recency
from scoring.candidates.filters import Exclusions
from scoring.candidates.lists_in_spark import LISTED, VectorStore, empty_lists
from scoring.inputs.requests import EXCLUDED, HISTORY, ITEM_INDEX, NEIGHBOURS, SIMILARITIES
from scoring.spark.scoring_workers import SCORING_IMPORTS
from spark.tasks import map_batches
from storage.feature_spec import ITEM_KEY, LABEL, USER_KEY

WEIGHT_UNITS = 1 << 24
SIMILARITY_UNITS = 1 << 30

Batches = Iterable[pa.RecordBatch]


def covisited_items(
    config: Covisitation, exclusions: Exclusions, rows: DataFrame, items: DataFrame, store: VectorStore
) -> DataFrame:
    """Returns, for each user, the n items with the highest scores that are not excluded.

    The result has the columns user_key, candidates and scores. If scores are equal, the smaller item index
    comes first. A user without clicks gets an empty list.

    The neighbours are computed and published before the function returns.

    Args:
        config: the settings of the source, such as n.
        exclusions: the excluded items of each user.
        rows: a frame with the columns user_key, item_key, label and the column that recency() returns.
        items: a frame with the columns item_index and item_key, one row per item.
        store: publishes the neighbours.
    """
    history = latest_items(rows, items, config.clicks_per_user).persist()
    near = nearest(similarities(history), config.neighbours)
    neighbours = near.groupBy(ITEM_INDEX).agg(*_columns_of_neighbours()).persist()
    count = neighbours.count()
    if not count:
        return empty_lists(exclusions.users)
    files = store.publish(config.name, neighbours, count, 2 * config.neighbours)
    neighbours.unpersist()
    of_user = history.groupBy(USER_KEY).agg(F.sort_array(F.collect_list(ITEM_INDEX)).alias(HISTORY))
    users = exclusions.users.join(of_user, USER_KEY, "left").select(USER_KEY, HISTORY, EXCLUDED)
    return map_batches(users, _lister(files, config.n), LISTED, SCORING_IMPORTS)


def _columns_of_neighbours() -> list[Column]:
    """Returns the columns of the published table, as aggregates over the neighbours of an item."""
    pairs = F.sort_array(
        F.collect_list(F.struct("other", F.col("similarity").cast("int").alias("similarity")))
    )
    return [pairs.getField("other").alias(NEIGHBOURS), pairs.getField("similarity").alias(SIMILARITIES)]


def _lister(files: tuple[str, ...], n: int) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Returns a function for mapInArrow that makes the lists of the users of one task."""

    def make_lists(batches: Batches) -> Iterator[pa.RecordBatch]:
        from scoring.candidates.neighbour_lists import load_neighbours  # scipy: only in the workers

        neighbours = load_neighbours(files)
        for batch in batches:
            yield neighbours.lists(batch, n)

    return make_lists


def latest_items(rows: DataFrame, items: DataFrame, most: int) -> DataFrame:
    """Returns the last `most` items that each user clicked.

    The result has one row per user and item, with the columns user_key, item_index and weight (int64). The
    weight is floor(WEIGHT_UNITS / number of the user's items in the result). If the times are equal, the
    smaller item index is preferred.
    """
    clicks = rows.where(F.col(LABEL) == 1).select(USER_KEY, ITEM_KEY, recency(rows).alias("at"))
    latest = (
        clicks.join(items.select(ITEM_KEY, ITEM_INDEX), ITEM_KEY)
        .groupBy(USER_KEY, ITEM_INDEX)
        .agg(F.max("at").alias("at"))
    )
    by_user = Window.partitionBy(USER_KEY)
    place = F.row_number().over(by_user.orderBy(F.desc("at"), F.asc(ITEM_INDEX)))
    kept = latest.select(USER_KEY, ITEM_INDEX, place.alias("place")).where(F.col("place") <= most)
    weight = F.floor(F.lit(WEIGHT_UNITS) / F.count(F.lit(1)).over(by_user)).cast("long")
    return kept.select(USER_KEY, ITEM_INDEX, weight.alias("weight"))


def similarities(history: DataFrame) -> DataFrame:
    """Returns the similarity of each ordered pair of different items that at least one user clicked both.

    The result has the columns item_index, other and similarity. `similarity` is an int64 in units of 2⁻³⁰.
    """
    others = history.select(USER_KEY, F.col(ITEM_INDEX).alias("other"))
    together = (
        history.join(others, USER_KEY)
        .where(F.col(ITEM_INDEX) < F.col("other"))
        .groupBy(ITEM_INDEX, "other")
        .agg(F.sum("weight").alias("shared"))
    )
    norm = history.groupBy(ITEM_INDEX).agg(F.sum("weight").alias("norm"))
    of_other = norm.select(F.col(ITEM_INDEX).alias("other"), F.col("norm").alias("norm_other"))
    lengths = F.sqrt(F.col("norm").cast("double")) * F.sqrt(F.col("norm_other").cast("double"))
    similarity = F.floor(F.col("shared") / lengths * SIMILARITY_UNITS + 0.5).cast("long")
    once = (
        together.join(norm, ITEM_INDEX)
        .join(of_other, "other")
        .select(ITEM_INDEX, "other", similarity.alias("similarity"))
    )
    both = F.array(
        F.struct(F.col(ITEM_INDEX).alias("from"), F.col("other").alias("to")),
        F.struct(F.col("other").alias("from"), F.col(ITEM_INDEX).alias("to")),
    )
    return once.select(F.explode(both).alias("pair"), "similarity").select(
        F.col("pair.from").alias(ITEM_INDEX), F.col("pair.to").alias("other"), "similarity"
    )


def nearest(similar: DataFrame, most: int) -> DataFrame:
    """Returns, for each item, the rows of the `most` other items that are most similar to it.

    If similarities are equal, the smaller item index is preferred.

    Args:
        similar: a frame with the columns item_index, other and similarity.
        most: maximum number of rows per item.
    """
    order: list[Column] = [F.desc("similarity"), F.asc("other")]
    place = F.row_number().over(Window.partitionBy(ITEM_INDEX).orderBy(*order))
    ranked = similar.select("*", place.alias("place")).where(F.col("place") <= most)
    return ranked.select(ITEM_INDEX, "other", "similarity")
