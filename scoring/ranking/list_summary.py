"""Facts of a night's lists, in one pass over them."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

HISTOGRAM_BINS = 20


def histogram_edges() -> list[float]:
    """Edges of equal bins over [0, 1]; the last bin holds 1 as well."""
    return [bin_ / HISTOGRAM_BINS for bin_ in range(HISTOGRAM_BINS + 1)]


def histogram_bin(probability: Column) -> Column:
    """The bin (int, 0..HISTOGRAM_BINS-1) of a probability."""
    return F.least(F.floor(probability.cast("double") * HISTOGRAM_BINS), F.lit(HISTOGRAM_BINS - 1)).cast(
        "int"
    )


def summarize_lists(lists: DataFrame, k: int, users: int, items: int) -> dict[str, Any]:
    """Facts of top-k lists.

    Args:
        lists: (user_id, position, item_id, score), as of score_lists.
        users: how many users were asked for, those without a candidate included.
        items: how many items could be recommended.

    Returns:
        rows; k, users, items; users_with_fewer (than k rows, none included); users_without (any row);
        items_recommended and coverage, its share of the items; score_histogram {edges, counts}.
    """
    bin_ = histogram_bin(F.col("score"))
    counts = [F.count(F.when(bin_ == each, 1)).alias(f"bin_{each}") for each in range(HISTOGRAM_BINS)]
    found = lists.agg(
        F.count(F.lit(1)).alias("rows"),
        F.count(F.when(F.col("position") == 1, 1)).alias("with_any"),
        F.count(F.when(F.col("position") == k, 1)).alias("with_all"),
        F.countDistinct("item_id").alias("items"),
        *counts,
    ).collect()[0]
    return {
        "rows": found["rows"],
        "k": k,
        "users": users,
        "items": items,
        "users_with_fewer": users - found["with_all"],
        "users_without": users - found["with_any"],
        "items_recommended": found["items"],
        "coverage": found["items"] / items if items else 0.0,
        "score_histogram": {
            "edges": histogram_edges(),
            "counts": [found[f"bin_{each}"] for each in range(HISTOGRAM_BINS)],
        },
    }
