"""Unobserved items as negatives, for logs that record only what users chose."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from conf.feature_spec import ITEM_KEY, LABEL, ROW_ID, USER_KEY
from conf.types import Negatives


def add_negatives(rows: DataFrame, config: Negatives, item_column: str) -> DataFrame:
    """The rows and, for each positive one, up to `per_positive` rows of items its user has no row with.

    The n-th draw of a row takes the item at position xxhash64(row_id, n, seed) modulo the number of items, in item
    order; so the result depends on nothing but the log. A draw of an item the user has a row with is left out. New
    rows have label 0 and keep every other column of their positive but the item. `row_id` becomes
    row_id * (per_positive + 1) + n, with n = 0 for the rows of the log.
    """
    stride = config.per_positive + 1
    items = rows.select(F.col(ITEM_KEY).alias("_item"), F.col(item_column).alias("_raw_item")).distinct()
    numbered = items.withColumn("_position", F.row_number().over(Window.orderBy("_item")) - 1)
    positives = rows.where(F.col(LABEL) == 1).withColumn(
        "_draw", F.explode(F.sequence(F.lit(1), F.lit(config.per_positive)))
    )
    position = F.pmod(F.xxhash64(ROW_ID, "_draw", F.lit(config.seed)), F.lit(items.count()))
    drawn = positives.withColumn("_position", position).join(F.broadcast(numbered), "_position")
    observed = rows.select(
        F.col(USER_KEY).alias("_seen_user"), F.col(ITEM_KEY).alias("_seen_item")
    ).distinct()
    fresh = drawn.join(
        observed,
        (F.col(USER_KEY) == F.col("_seen_user")) & (F.col("_item") == F.col("_seen_item")),
        "left_anti",
    )
    negatives = fresh.withColumns(
        {
            ITEM_KEY: F.col("_item"),
            item_column: F.col("_raw_item"),
            LABEL: F.lit(0.0).cast("float"),
            ROW_ID: F.col(ROW_ID) * stride + F.col("_draw"),
        }
    )
    logged = rows.withColumn(ROW_ID, F.col(ROW_ID) * stride)
    return logged.unionByName(negatives.select(*rows.columns))
