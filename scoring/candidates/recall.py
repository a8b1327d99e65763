"""Recall of the candidate stage: of what users clicked afterwards, how much they could have been shown at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from scoring.inputs.requests import CANDIDATES, EXCLUDED, ITEM_INDEX, SOURCES
from storage.feature_spec import ITEM_KEY, USER_KEY

# Decimals add up to the same sum in any order.
_EXACT = "decimal(18,15)"


@dataclass(frozen=True)
class Recall:
    """Recall@n of one group of users, n being the length of each user's list.

    Attributes:
        users: users with a row in `candidates` and at least one positive.
        positives: their positives.
        recall: mean over them of the share of their positives that their candidates hold; None for no users.
        by_source: source → the part of `recall` whose items it gave; the parts add up to it. Empty where candidates are all
            items.
        mean_candidates: candidates a user on average, over these users.
    """

    users: int
    positives: int
    recall: float | None
    by_source: dict[str, float] = field(default_factory=dict)
    mean_candidates: float | None = None


def measure_recall(
    candidates: DataFrame, items: DataFrame, positives: DataFrame, warm: DataFrame, sources: Sequence[str]
) -> dict[bool, Recall]:
    """Recall of candidates, for users in `warm` (True) and all others, the cold ones (False).

    A positive that is no candidate item counts as missed.

    Args:
        candidates: (user_key, candidates, excluded, sources), one row a user.
        items: (item_index, item_key).
        positives: distinct (user_key, item_key).
        warm: distinct user_key.
        sources: names by their number in `sources`; `all_items` alone has none there.
    """
    num_items = items.count()
    wanted = positives.join(items.select(ITEM_KEY, ITEM_INDEX), ITEM_KEY, "left")
    asked = wanted.join(candidates, USER_KEY)
    place = F.call_function("array_position", F.col(CANDIDATES), F.col(ITEM_INDEX))
    everything = F.col(CANDIDATES).isNull()
    barred = F.coalesce(F.call_function("array_contains", F.col(EXCLUDED), F.col(ITEM_INDEX)), F.lit(False))
    source = F.when(
        place > 0, F.call_function("element_at", F.col(SOURCES), F.when(place > 0, place).cast("int"))
    )
    length = F.when(
        everything, num_items - F.coalesce(F.when(F.col(EXCLUDED).isNotNull(), F.size(EXCLUDED)), F.lit(0))
    ).otherwise(F.size(CANDIDATES))
    hits = asked.select(
        USER_KEY,
        length.alias("length"),
        F.when(everything, F.col(ITEM_INDEX).isNotNull() & ~barred)
        .otherwise(F.coalesce(place > 0, F.lit(False)))
        .alias("hit"),
        source.alias("source"),
    )
    shares = [
        _share(F.count(F.when(F.col("source") == number, 1)), f"source_{number}")
        for number in range(len(sources))
    ]
    users = hits.groupBy(USER_KEY).agg(
        F.count(F.lit(1)).alias("positives"),
        F.max("length").alias("length"),
        _share(F.count(F.when(F.col("hit"), 1)), "recall"),
        *shares,
    )
    groups = users.join(warm.withColumn("warm", F.lit(True)), USER_KEY, "left")
    summed = ["recall", *(f"source_{number}" for number in range(len(sources)))]
    measured = (
        groups.groupBy(F.coalesce("warm", F.lit(False)).alias("warm"))
        .agg(
            F.count(F.lit(1)).alias("users"),
            F.sum("positives").alias("positives"),
            F.sum("length").alias("length"),
            *(F.sum(name).alias(name) for name in summed),
        )
        .collect()
    )
    found = {}
    for row in measured:
        mean = {name: float(row[name]) / row["users"] for name in summed}
        listed = list(sources) != ["all_items"]
        parts = {name: mean[f"source_{number}"] for number, name in enumerate(sources)} if listed else {}
        found[row["warm"]] = Recall(
            row["users"], row["positives"], mean["recall"], parts, row["length"] / row["users"]
        )
    return {group: found.get(group, Recall(0, 0, None)) for group in (True, False)}


def _share(hits: Column, name: str) -> Column:
    """Share of a user's positives."""
    return (hits / F.count(F.lit(1))).cast(_EXACT).alias(name)
