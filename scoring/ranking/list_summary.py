"""Facts of a run's lists, in one pass over them."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

HISTOGRAM_BINS = 20


def histogram_edges() -> list[float]:
    """The edges of bins of equal width over [0, 1]. The last bin includes 1."""
    return [bin_ / HISTOGRAM_BINS for bin_ in range(HISTOGRAM_BINS + 1)]


def histogram_bin(probability: Column) -> Column:
    """The bin (int, 0..HISTOGRAM_BINS-1) of a probability."""
    return F.least(F.floor(probability.cast("double") * HISTOGRAM_BINS), F.lit(HISTOGRAM_BINS - 1)).cast(
        "int"
    )


def summarize_lists(lists: DataFrame, k: int, users: int, items: int) -> dict[str, Any]:
    """Facts of top-k lists.

    Args:
        lists: (user_id, position, item_id, score), as score_lists returns them.
        k: length of a full list.
        users: number of users, including users without candidates.
        items: number of items that could be recommended.

    Returns:
        `rows`, the number of list entries; `k`, `users` and `items`; `users_with_fewer`, the number of users
        with fewer than k entries (also those with none); `users_without`, the number of users without an
        entry; `items_recommended`, the number of items in at least one list; `coverage`, items_recommended /
        items; `score_histogram` {edges, counts}.
    """
    bin_ = histogram_bin(F.col("score"))
    counts = [F.count(F.when(bin_ == number, 1)).alias(f"bin_{number}") for number in range(HISTOGRAM_BINS)]
    totals = lists.agg(
        F.count(F.lit(1)).alias("rows"),
        F.count(F.when(F.col("position") == 1, 1)).alias("with_any"),
        F.count(F.when(F.col("position") == k, 1)).alias("with_all"),
        F.countDistinct("item_id").alias("items"),
        *counts,
    ).collect()[0]
    return {
        "rows": totals["rows"],
        "k": k,
        "users": users,
        "items": items,
        "users_with_fewer": users - totals["with_all"],
        "users_without": users - totals["with_any"],
        "items_recommended": totals["items"],
        "coverage": totals["items"] / items if items else 0.0,
        "score_histogram": {
            "edges": histogram_edges(),
            "counts": [totals[f"bin_{number}"] for number in range(HISTOGRAM_BINS)],
        },
    }
