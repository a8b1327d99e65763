"""Compares the new lists of a run with the lists that were published before.

Small lists are Arrow tables in the driver, and others are Spark frames. Both give equal figures.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from metrics.histogram import bin_keys
from storage.feature_spec import ITEM_KEY

# Decimals add up to the same sum in any order.
_EXACT = "decimal(18,15)"


@dataclass(frozen=True)
class ListChanges:
    """The differences between the earlier lists and the new lists.

    Attributes:
        users_in_both: number of users with an earlier list and a new list.
        users_lost: number of users with an earlier list, but without a new list.
        users_gained: number of users with a new list, but without an earlier list.
        churn: the share of items in a user's new list that are not in the user's earlier list, averaged over
            the users with both lists; None if there are no such users.
        jaccard: |intersection| / |union| of a user's two lists, averaged over the users with both lists; None
            if there are no such users.
    """

    users_in_both: int
    users_lost: int
    users_gained: int
    churn: float | None
    jaccard: float | None

    @property
    def users_lost_share(self) -> float | None:
        """Returns the share of users without a new list among the users with an earlier list.

        Returns None if no user has an earlier list.
        """
        before = self.users_in_both + self.users_lost
        return self.users_lost / before if before else None


def compare_lists(today: pa.Table | DataFrame, before: pa.Table | DataFrame) -> ListChanges:
    """Compares the items of the new lists with the items of the earlier lists.

    Positions and scores are not compared.

    Args:
        today: a table or a frame with the columns user_id and item_id: one row per entry of the new lists,
            without repeated rows.
        before: the same columns of the earlier lists, also as a table or also as a frame.
    """
    if isinstance(today, pa.Table):
        return _compare_tables(today, before)
    return _compare_frames(today, before)


def _compare_tables(today: pa.Table, before: pa.Table) -> ListChanges:
    users, items = (
        pa.chunked_array([*today[name].chunks, *before[name].chunks]).combine_chunks().dictionary_encode()
        for name in ("user_id", "item_id")
    )
    user = users.indices.to_numpy().astype(np.int64)
    pairs = user * len(items.dictionary) + items.indices.to_numpy()
    of_today, of_before = np.arange(len(pairs)) < len(today), np.arange(len(pairs)) >= len(today)
    shared = of_today & np.isin(pairs, pairs[of_before])
    in_today, in_before, in_both = (
        np.bincount(user[rows], minlength=len(users.dictionary)) for rows in (of_today, of_before, shared)
    )
    compared = (in_today > 0) & (in_before > 0)
    count = int(compared.sum())
    today_items, before_items, both = in_today[compared], in_before[compared], in_both[compared]
    churn, jaccard = 1 - both / today_items, both / (today_items + before_items - both)
    return ListChanges(
        count,
        int((in_today == 0).sum()),
        int((in_before == 0).sum()),
        math.fsum(churn) / count if count else None,
        math.fsum(jaccard) / count if count else None,
    )


def _compare_frames(today: DataFrame, before: DataFrame) -> ListChanges:
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


def cold_entries(lists: pa.Table | DataFrame, clicked: pa.Array | DataFrame) -> int:
    """Returns the number of list entries whose item nobody clicked.

    Args:
        lists: a table or a frame with the column item_id, one row per list entry.
        clicked: for a table, an array of the clicked items. For a frame, a frame with the column item_key,
            one row per click.
    """
    if isinstance(lists, pa.Table):
        return len(lists) - int(pc.sum(pc.is_in(lists["item_id"], value_set=clicked)).as_py() or 0)
    entries = lists.groupBy(F.col("item_id").alias(ITEM_KEY)).agg(F.count(F.lit(1)).alias("entries"))
    cold = entries.join(clicked.select(ITEM_KEY).distinct(), ITEM_KEY, "left_anti")
    return int(cold.agg(F.coalesce(F.sum("entries"), F.lit(0)).alias("entries")).collect()[0]["entries"])


def score_bins(lists: pa.Table | DataFrame) -> Counter[int]:
    """Returns the histogram of the scores in some lists.

    The result maps the key of each bin (metrics.histogram) to the number of list entries whose score is in
    this bin.
    """
    if isinstance(lists, pa.Table):
        return Counter(_bins_of(lists["score"]))
    counted = lists.select("score").mapInArrow(_count_bins, "bin long, entries long")
    return Counter(
        {
            row["bin"]: row["entries"]
            for row in counted.groupBy("bin").agg(F.sum("entries").alias("entries")).collect()
        }
    )


def _count_bins(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Counts, for each batch, how many scores are in each bin. The function is passed to mapInArrow."""
    for batch in batches:
        bins = _bins_of(batch.column(0))
        columns = [pa.array([*values], pa.int64()) for values in (bins.keys(), bins.values())]
        yield pa.RecordBatch.from_arrays(columns, ["bin", "entries"])


def _bins_of(scores: pa.Array) -> dict[int, int]:
    keys, counts = np.unique(bin_keys(np.asarray(scores).astype(np.float64)), return_counts=True)
    return dict(zip(keys.tolist(), counts.tolist(), strict=True))
