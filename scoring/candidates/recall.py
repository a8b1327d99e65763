"""Measures the recall of the candidates: the share of the items clicked later that were candidates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from scoring.inputs.requests import CANDIDATES, EXCLUDED, ITEM_INDEX, SOURCES
from storage.feature_spec import ITEM_KEY, USER_KEY

# Decimals add up to the same sum in any order.
_EXACT = "decimal(18,15)"


@dataclass(frozen=True)
class Recall:
    """Recall@n of one group of users, where n is the length of each user's list of candidates.

    A positive of a user is an item that the user clicked later.

    Attributes:
        users: number of users with a row in the candidates table and at least one positive. The other
            attributes are about these users.
        positives: number of positives of all these users together.
        recall: the share of a user's positives that are candidates, averaged over the users; None if there
            are no users.
        by_source: maps the name of each source to the recall that its candidates reach alone. The values of
            all sources add up to `recall`. Empty if all items are candidates.
        mean_candidates: mean number of candidates per user.
    """

    users: int
    positives: int
    recall: float | None
    by_source: dict[str, float] = field(default_factory=dict)
    mean_candidates: float | None = None


def measure_recall(
    candidates: DataFrame, items: DataFrame, positives: DataFrame, warm: DataFrame, sources: Sequence[str]
) -> dict[bool, Recall]:
    """Returns the recall of the candidates for warm users (key True) and for cold users (key False).

    If the item of a positive is not in `items`, the positive counts as missed.

    Args:
        candidates: a frame with the columns user_key, candidates, excluded and sources, one row per user.
        items: a frame with the columns item_index and item_key, one row per item.
        positives: a frame with the columns user_key and item_key: the distinct items that each user clicked
            later.
        warm: a frame with the distinct user_key of the warm users. All other users are cold.
        sources: the names of the sources. The column `sources` has indices into this sequence; it is null for
            the source `all_items`.
    """
    indexed = positives.join(items.select(ITEM_KEY, ITEM_INDEX), ITEM_KEY, "left")
    hits = _hits(indexed.join(candidates, USER_KEY), items.count())
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
    sums = (
        groups.groupBy(F.coalesce("warm", F.lit(False)).alias("warm"))
        .agg(
            F.count(F.lit(1)).alias("users"),
            F.sum("positives").alias("positives"),
            F.sum("length").alias("length"),
            *(F.sum(name).alias(name) for name in summed),
        )
        .collect()
    )
    return _recall_by_group(sums, sources)


def _hits(pairs: DataFrame, num_items: int) -> DataFrame:
    """Returns a frame with one row for each positive of each user who has candidates.

    Args:
        pairs: a frame with the columns user_key, item_index, candidates, excluded and sources: one row per
            positive. item_index is null for an unknown item.
        num_items: the total number of items.

    Returns:
        A frame with these columns:
        - `user_key`
        - `length`: the number of candidates of the user
        - `hit`: whether the positive is a candidate
        - `source`: the index of the source that proposed the positive; null if no source did
    """
    position = F.call_function("array_position", F.col(CANDIDATES), F.col(ITEM_INDEX))
    all_items = F.col(CANDIDATES).isNull()
    is_excluded = F.coalesce(
        F.call_function("array_contains", F.col(EXCLUDED), F.col(ITEM_INDEX)), F.lit(False)
    )
    source = F.when(
        position > 0,
        F.call_function("element_at", F.col(SOURCES), F.when(position > 0, position).cast("int")),
    )
    num_excluded = F.coalesce(F.when(F.col(EXCLUDED).isNotNull(), F.size(EXCLUDED)), F.lit(0))
    length = F.when(all_items, num_items - num_excluded).otherwise(F.size(CANDIDATES))
    hit = F.when(all_items, F.col(ITEM_INDEX).isNotNull() & ~is_excluded).otherwise(
        F.coalesce(position > 0, F.lit(False))
    )
    return pairs.select(USER_KEY, length.alias("length"), hit.alias("hit"), source.alias("source"))


def _share(hits: Column, name: str) -> Column:
    """Returns a column with this name: the share of a user's positives that are hits."""
    return (hits / F.count(F.lit(1))).cast(_EXACT).alias(name)


def _recall_by_group(sums: Iterable[Row], sources: Sequence[str]) -> dict[bool, Recall]:
    """Returns the recall of warm users (key True) and of cold users (key False).

    Args:
        sums: one row for each group that has users, with the sums over the users of the group.
        sources: the names of the sources.
    """
    recalls = {}
    for row in sums:
        users, by_source = row["users"], {}
        if list(sources) != ["all_items"]:
            by_source = {name: float(row[f"source_{number}"]) / users for number, name in enumerate(sources)}
        recall = float(row["recall"]) / users
        recalls[row["warm"]] = Recall(users, row["positives"], recall, by_source, row["length"] / users)
    return {group: recalls.get(group, Recall(0, 0, None)) for group in (True, False)}
