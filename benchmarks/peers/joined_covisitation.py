"""Lists of co-visited items as two joins in Spark: pairs of clicks, then clicks and the neighbours of their items.

It computes the same similarities and the same lists as scoring/candidates/covisitation.py, with the same units.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

WEIGHT_UNITS, SIMILARITY_UNITS = 1 << 24, 1 << 30


def joined_lists(clicks: DataFrame, neighbours: int, n: int) -> DataFrame:
    """Returns the lists: a frame with the columns user_key and candidates.

    Args:
        clicks: a frame with distinct rows of user_key and item_index.
        neighbours: number of similar items that are kept for each item.
        n: maximum number of items in a list.
    """
    by_user = Window.partitionBy("user_key")
    weight = F.floor(F.lit(WEIGHT_UNITS) / F.count(F.lit(1)).over(by_user)).cast("long")
    history = clicks.withColumn("weight", weight).persist()
    others = history.select("user_key", F.col("item_index").alias("other"))
    shared = (
        history.join(others, "user_key")
        .where("item_index != other")
        .groupBy("item_index", "other")
        .agg(F.sum("weight").alias("shared"))
    )
    norm = history.groupBy("item_index").agg(F.sum("weight").alias("norm"))
    of_other = norm.select(F.col("item_index").alias("other"), F.col("norm").alias("norm_other"))
    lengths = F.sqrt(F.col("norm").cast("double")) * F.sqrt(F.col("norm_other").cast("double"))
    similarity = F.floor(F.col("shared") / lengths * SIMILARITY_UNITS + 0.5).cast("long")
    similar = shared.join(norm, "item_index").join(of_other, "other").withColumn("similarity", similarity)
    nearest_first = Window.partitionBy("item_index").orderBy(F.desc("similarity"), F.asc("other"))
    near = (
        similar.withColumn("place", F.row_number().over(nearest_first))
        .where(F.col("place") <= neighbours)
        .select("item_index", "other", "similarity")
    )
    scored = (
        history.join(near, "item_index").groupBy("user_key", "other").agg(F.sum("similarity").alias("score"))
    )
    ranked = F.sort_array(F.collect_list(F.struct((-F.col("score")).alias("score"), "other")))
    return scored.groupBy("user_key").agg(F.slice(ranked.getField("other"), 1, n).alias("candidates"))
