"""Computes statistics of the lists that a run makes: counts, coverage and a histogram of the scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

HISTOGRAM_BINS = 20


def histogram_edges() -> list[float]:
    """Returns the edges of the bins of the histogram, from 0 to 1.

    All bins have equal width. The last bin includes 1.
    """
    return [bin_ / HISTOGRAM_BINS for bin_ in range(HISTOGRAM_BINS + 1)]


def histogram_bin(probability: Column) -> Column:
    """Returns the index of the bin that contains a probability: an int from 0 to HISTOGRAM_BINS - 1."""
    return F.least(F.floor(probability.cast("double") * HISTOGRAM_BINS), F.lit(HISTOGRAM_BINS - 1)).cast(
        "int"
    )


def summarize_lists(lists: pa.Table | DataFrame, k: int, users: int, items: int) -> dict[str, Any]:
    """Computes statistics of top-k lists, in one pass over the list entries.

    Args:
        lists: a table or a frame with the columns user_id, position, item_id and score, as score_lists
            returns it. It has one row per list entry.
        k: length of a full list.
        users: number of users, including users without candidates.
        items: number of items that could be recommended.

    Returns:
        A dictionary with these keys:
        - `rows`: number of list entries
        - `k`, `users`, `items`: the arguments
        - `users_with_fewer`: number of users with fewer than k entries, including users without an entry
        - `users_without`: number of users without an entry
        - `items_recommended`: number of items in at least one list
        - `coverage`: items_recommended / items
        - `score_histogram`: the dictionary {edges, counts}
    """
    totals = _totals_of_table(lists, k) if isinstance(lists, pa.Table) else _totals_of_frame(lists, k)
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


def _totals_of_frame(lists: DataFrame, k: int) -> dict[str, int]:
    bin_ = histogram_bin(F.col("score"))
    counts = [F.count(F.when(bin_ == number, 1)).alias(f"bin_{number}") for number in range(HISTOGRAM_BINS)]
    totals = lists.agg(
        F.count(F.lit(1)).alias("rows"),
        F.count(F.when(F.col("position") == 1, 1)).alias("with_any"),
        F.count(F.when(F.col("position") == k, 1)).alias("with_all"),
        F.countDistinct("item_id").alias("items"),
        *counts,
    ).collect()[0]
    return totals.asDict()


def _totals_of_table(lists: pa.Table, k: int) -> dict[str, int]:
    position = lists["position"].to_numpy()
    bins = np.floor(lists["score"].to_numpy().astype(np.float64) * HISTOGRAM_BINS).astype(np.int64)
    counts = np.bincount(np.minimum(bins, HISTOGRAM_BINS - 1), minlength=HISTOGRAM_BINS)
    return {
        "rows": len(lists),
        "with_any": int((position == 1).sum()),
        "with_all": int((position == k).sum()),
        "items": pc.count_distinct(lists["item_id"]).as_py(),
        **{f"bin_{number}": int(count) for number, count in enumerate(counts)},
    }
