"""Selects the k best items of each user with plain Spark SQL: row_number over a window.

The input has one row for each pair of a user and an item, with the score of the pair.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F


def top(pairs: DataFrame, k: int) -> DataFrame:
    """Returns the k rows with the highest scores of each user.

    The columns are user_id, position, item_id and score.

    Args:
        pairs: a frame with the columns user_id, item_id and score. Rows with equal scores are ordered by
            item_id.
        k: largest number of rows of a user.
    """
    ordered = Window.partitionBy("user_id").orderBy(F.desc("score"), F.asc("item_id"))
    ranked = pairs.withColumn("position", F.row_number().over(ordered))
    return ranked.where(F.col("position") <= k).select("user_id", "position", "item_id", "score")
