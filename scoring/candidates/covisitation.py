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
clicks_per_user² pairs of items. Before the shuffle, each task adds up the weights of equal pairs.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from conf.types import Covisitation
from scoring.candidates.clicks import recency
from scoring.candidates.filters import Exclusions
from scoring.candidates.popular import allowed
from scoring.inputs.requests import CANDIDATES, ITEM_INDEX
from storage.feature_spec import ITEM_KEY, LABEL, USER_KEY

WEIGHT_UNITS = 1 << 24
SIMILARITY_UNITS = 1 << 30

# The users of a popular item are divided among this many tasks when they are joined with its neighbours.
_SALTS = 8


def covisited_items(
    config: Covisitation, exclusions: Exclusions, rows: DataFrame, items: DataFrame
) -> DataFrame:
    """Returns, for each user, the n items with the highest scores that are not excluded.

    The result has the columns user_key and candidates. If scores are equal, the smaller item index comes
    first. A user without clicks gets an empty list.

    Args:
        config: the settings of the source, such as n.
        exclusions: the excluded items of each user.
        rows: a frame with the columns user_key, item_key, label and the column that recency() returns.
        items: a frame with the columns item_index and item_key, one row per item.
    """
    history = latest_items(rows, items, config.clicks_per_user).persist()
    near = nearest(similarities(history), config.neighbours)
    salts = F.explode(F.array(*(F.lit(salt) for salt in range(_SALTS))))
    salted = near.withColumn("salt", salts)
    salted_history = history.withColumn("salt", F.pmod(F.xxhash64(USER_KEY), F.lit(_SALTS)).cast("int"))
    scored = (
        salted_history.join(salted, [ITEM_INDEX, "salt"])
        .groupBy(USER_KEY, "other")
        .agg(F.sum("similarity").alias("score"))
    )
    ranking = F.sort_array(F.collect_list(F.struct((-F.col("score")).alias("score"), "other"))).getField(
        "other"
    )
    ranked = scored.groupBy(USER_KEY).agg(ranking.alias("ranking"))
    listed = exclusions.users.join(ranked, USER_KEY, "left")
    ranking = F.coalesce("ranking", F.array().cast("array<int>"))
    return listed.select(USER_KEY, allowed(ranking, config.n).alias(CANDIDATES))


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
    pairs = history.join(history.select(USER_KEY, F.col(ITEM_INDEX).alias("other")), USER_KEY)
    together = (
        pairs.where(F.col(ITEM_INDEX) != F.col("other"))
        .groupBy(ITEM_INDEX, "other")
        .agg(F.sum("weight").alias("shared"))
    )
    norm = history.groupBy(ITEM_INDEX).agg(F.sum("weight").alias("norm"))
    of_other = norm.select(F.col(ITEM_INDEX).alias("other"), F.col("norm").alias("norm_other"))
    lengths = F.sqrt(F.col("norm").cast("double")) * F.sqrt(F.col("norm_other").cast("double"))
    similarity = F.floor(F.col("shared") / lengths * SIMILARITY_UNITS + 0.5).cast("long")
    return (
        together.join(norm, ITEM_INDEX)
        .join(of_other, "other")
        .select(ITEM_INDEX, "other", similarity.alias("similarity"))
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
