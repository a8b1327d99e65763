"""Differences between the new lists of a run and the lists that were published before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from metrics.histogram import bin_keys
from storage.feature_spec import ITEM_KEY

# Decimals add up to the same sum in any order.
_EXACT = "decimal(18,15)"


@dataclass(frozen=True)
class ListChanges:
    """Differences between two sets of lists.

    Attributes:
        users_in_both, users_lost, users_gained: number of users with a list in both sets, only in the earlier
            set, and only in the new set.
        churn: the share of items in a user's new list that were not in the earlier list, averaged over the
            users in both sets; None if there are no such users.
        jaccard: |intersection| / |union| of a user's two lists, averaged over the users in both sets; None if
            there are no such users.
    """

    users_in_both: int
    users_lost: int
    users_gained: int
    churn: float | None
    jaccard: float | None

    @property
    def users_lost_share(self) -> float | None:
        """Share of the users of the earlier lists who have no new list; None if there were no users."""
        before = self.users_in_both + self.users_lost
        return self.users_lost / before if before else None


def compare_lists(today: DataFrame, before: DataFrame) -> ListChanges:
    """Compares the items of two sets of lists; positions and scores are not compared.

    Args:
        today, before: (user_id, item_id) of the new and of the earlier lists, without repeated rows.
    """
    flagged = [
        rows.select("user_id", "item_id", F.lit(is_today).alias("today"), F.lit(1 - is_today).alias("before"))
        for rows, is_today in ((today, 1), (before, 0))
    ]
    # One shuffle by user serves both aggregations below.
    entries = flagged[0].unionByName(flagged[1]).repartition("user_id").groupBy("user_id", "item_id")
    items = entries.agg(F.max("today").alias("today"), F.max("before").alias("before"))
    users = items.groupBy("user_id").agg(
        F.sum("today").alias("today"),
        F.sum("before").alias("before"),
        F.sum(F.col("today") * F.col("before")).alias("both"),
    )
    in_both = (F.col("today") > 0) & (F.col("before") > 0)
    churn = 1 - F.col("both") / F.col("today")
    jaccard = F.col("both") / (F.col("today") + F.col("before") - F.col("both"))
    totals = users.agg(
        F.count(F.when(in_both, 1)).alias("both"),
        F.count(F.when(F.col("today") == 0, 1)).alias("lost"),
        F.count(F.when(F.col("before") == 0, 1)).alias("gained"),
        F.sum(F.when(in_both, churn.cast(_EXACT))).alias("churn"),
        F.sum(F.when(in_both, jaccard.cast(_EXACT))).alias("jaccard"),
    ).collect()[0]
    shared = totals["both"]
    return ListChanges(
        shared,
        totals["lost"],
        totals["gained"],
        float(totals["churn"]) / shared if shared else None,
        float(totals["jaccard"]) / shared if shared else None,
    )


def cold_entries(lists: DataFrame, clicked: DataFrame) -> int:
    """The number of list entries whose item nobody clicked.

    Args:
        lists: a frame with item_id, one row per list entry.
        clicked: item_key, one row per click.
    """
    entries = lists.groupBy(F.col("item_id").alias(ITEM_KEY)).agg(F.count(F.lit(1)).alias("entries"))
    cold = entries.join(clicked.select(ITEM_KEY).distinct(), ITEM_KEY, "left_anti")
    return int(cold.agg(F.coalesce(F.sum("entries"), F.lit(0)).alias("entries")).collect()[0]["entries"])


def score_bins(lists: DataFrame) -> Counter[int]:
    """Maps each bin of the score (metrics.histogram) to the number of list entries in it."""
    counted = lists.select("score").mapInArrow(_count_bins, "bin long, entries long")
    return Counter(
        {
            row["bin"]: row["entries"]
            for row in counted.groupBy("bin").agg(F.sum("entries").alias("entries")).collect()
        }
    )


def _count_bins(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For mapInArrow: counts how many scores of each batch are in each bin."""
    for batch in batches:
        scores = batch.column(0).to_numpy(zero_copy_only=False).astype(np.float64)
        keys, counts = np.unique(bin_keys(scores), return_counts=True)
        yield pa.RecordBatch.from_arrays(
            [pa.array(keys), pa.array(counts.astype(np.int64))], ["bin", "entries"]
        )
