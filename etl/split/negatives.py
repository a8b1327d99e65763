"""Draws negatives in frames of Spark, for logs that have only positive rows.

etl/prepare/negatives.py draws the same rows without Spark.

A negative is a row of a user with an item for which the user has no row in the log.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from conf.lazy_imports import F, Window
from conf.types import SPLITS, Negatives
from etl.split.time_split import SPLIT
from storage.feature_spec import ITEM_KEY, LABEL, ROW_ID, USER_KEY, WEIGHT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# A part of the digest of prepared rows. Change this text if the code draws different negatives from the same
# log. Jobs then prepare the rows again.
DRAW = "from the split of the row and before"
_SINCE = "_since"


def add_negatives(rows: DataFrame, config: Negatives, item_column: str, weighted: bool = False) -> DataFrame:
    """Adds up to `per_positive` negatives for each positive row: items that its user has no row for.

    The negatives of a positive row are drawn only from rows of the same split and of earlier splits: for a
    train row from the train rows, for a test row from all rows. So validation and test rows do not change the
    negatives of a train row. If there is no column `split` (one day of a log that is stored by day),
    negatives are drawn from all rows of the day.

    With `train: false`, no negatives are added for train rows. The negatives of the other splits stay the
    same.

    Let m be the number of distinct items in the rows from which the negatives of a positive row are drawn.
    These items are ordered by the first split in which they occur, then by item key. Draw n, from 1 to
    `per_positive`, takes the item at index pmod(xxhash64(row_id, n, seed), m). If the user already has a row
    with the drawn item among the rows from which negatives are drawn, the draw adds no negative. The result
    depends only on the log and the configuration.

    A negative has label 0 and, if rows have weights, the weight 1. Except for the item, its other columns
    have the values of the positive row. The row_id of every row becomes row_id * (per_positive + 1) + n. Here
    n is 0 for the rows of the log, and the number of the draw for negatives.

    Args:
        rows: frame with keys, label and row_id.
        config: the section `negatives`: maximum number of negatives per positive row, the seed, and whether
            train rows get negatives. With `train: false`, the frame must have the column `split`.
        item_column: the raw column of the item key.
        weighted: whether rows have the column `weight`.
    """
    stride = config.per_positive + 1
    since = rows.select("*", _split_number(rows).alias(_SINCE))
    items = since.groupBy(F.col(ITEM_KEY).alias("_item"), F.col(item_column).alias("_raw_item")).agg(
        F.min(_SINCE).alias("_item_since")
    )
    in_order = Window.orderBy("_item_since", "_item")
    numbered = items.select("_item", "_raw_item", (F.row_number().over(in_order) - 1).alias("_position"))
    wanted = F.col(LABEL) == 1
    if not config.train:
        wanted &= F.col(SPLIT) != "train"
    positives = since.where(wanted).withColumn(
        "_draw", F.explode(F.sequence(F.lit(1), F.lit(config.per_positive)))
    )
    position = F.pmod(F.xxhash64(ROW_ID, "_draw", F.lit(config.seed)), _visible_items(items))
    drawn = positives.withColumn("_position", position).join(F.broadcast(numbered), "_position")
    observed = since.groupBy(F.col(USER_KEY).alias("_seen_user"), F.col(ITEM_KEY).alias("_seen_item")).agg(
        F.min(_SINCE).alias("_seen_since")
    )
    fresh = drawn.join(
        observed,
        (F.col(USER_KEY) == F.col("_seen_user"))
        & (F.col("_item") == F.col("_seen_item"))
        & (F.col("_seen_since") <= F.col(_SINCE)),
        "left_anti",
    )
    negatives = fresh.withColumns(
        {
            ITEM_KEY: F.col("_item"),
            item_column: F.col("_raw_item"),
            LABEL: F.lit(0.0).cast("float"),
            ROW_ID: F.col(ROW_ID) * stride + F.col("_draw"),
            **({WEIGHT: F.lit(1.0).cast("float")} if weighted else {}),
        }
    )
    logged = rows.withColumn(ROW_ID, F.col(ROW_ID) * stride)
    return logged.unionByName(negatives.select(*rows.columns))


def drawn_rows(config: Negatives) -> str:
    """Returns an SQL condition that is true for drawn negatives in a feature table, else false."""
    return f"{ROW_ID} % {config.per_positive + 1} <> 0"


def _split_number(rows: DataFrame) -> Column:
    """Returns the index of a row's split: 0 for train (or without splits), 1 for validation, 2 for test."""
    number = F.lit(0)
    if SPLIT in rows.columns:
        for index, split in enumerate(SPLITS):
            number = F.when(F.col(SPLIT) == split, F.lit(index)).otherwise(number)
    return number


def _visible_items(items: DataFrame) -> Column:
    """Returns the number of items that occur in the split with index `_since` or in an earlier split."""
    first_seen = {row["_item_since"]: row["count"] for row in items.groupBy("_item_since").count().collect()}
    visible = list(accumulate(first_seen.get(index, 0) for index in range(len(SPLITS))))
    count = F.lit(visible[0])
    for index, total in enumerate(visible[1:], start=1):
        count = F.when(F.col(_SINCE) == index, F.lit(total)).otherwise(count)
    return count
