"""The k best items of each user in plain SQL: row_number over a window, on pairs that already have their
scores.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F


def top(pairs: DataFrame, k: int) -> DataFrame:
    """Returns (user_id, position, item_id, score) of (user_id, item_id, score). Scores descend; ties are
    ordered by item.
    """
    ordered = Window.partitionBy("user_id").orderBy(F.desc("score"), F.asc("item_id"))
    ranked = pairs.withColumn("position", F.row_number().over(ordered))
    return ranked.where(F.col("position") <= k).select("user_id", "position", "item_id", "score")
