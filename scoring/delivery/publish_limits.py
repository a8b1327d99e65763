"""Compares new lists with the last published lists. If a limit is exceeded, the new lists are not published.

The result of the comparison is always published, as the table `list_changes`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from conf.errors import DataError
from conf.load import config_digest
from conf.types import Stop
from etl.latest.latest_rows import ROWS_IN_DRIVER
from metrics.psi import bin_keys, bin_numbers, drift_of
from scoring.feature_rows import last_published, read_split
from spark.rows import ReadableRows, StoredRows, frame_of, query, table_of, union_stored
from storage.dataset import Dataset, split_partitions
from storage.feature_spec import ITEM_KEY, LABEL
from storage.manifest import Manifest, read_manifest
from storage.paths import Partition
from storage.publish import publish_facts, rows_of
from storage.read_parquet import read_table
from storage.run_context import RunContext


@dataclass(frozen=True)
class Excess:
    """A figure of the table `list_changes` that is above its maximum or below its minimum.

    Attributes:
        figure: name of the figure.
        setting: key of the section `score.stop` that sets the limit.
        value, limit: the value of the figure, and its limit.
    """

    figure: str
    setting: str
    value: float
    limit: float

    @property
    def message(self) -> str:
        """Returns the figure, its value and its limit as a phrase for error messages."""
        side = "below" if self.setting.startswith("min_") else "above"
        return f"{self.figure}={self.value:.4g} is {side} score.stop.{self.setting}={self.limit:g}"


# Maps each figure about new lists to the key of the section score.stop that limits it.
_LIMITS = {
    "churn": "max_churn",
    "coverage": "min_coverage",
    "cold_share": "max_cold_share",
    "score_psi": "max_score_psi",
    "users_lost_share": "max_users_lost_share",
}


def publish_changes(
    context: RunContext,
    dataset: Dataset,
    lists: pa.Table | DataFrame,
    facts: Mapping[str, Any],
    rows: int,
    made_of: Mapping[str, str],
) -> dict[str, Any]:
    """Publishes the table list_changes, and returns the `facts` of its manifest.

    Call it before the lists are published.

    Args:
        context: the run's configuration, lake, run date and Spark session.
        dataset: the splits that build_features published for the run date.
        lists: the new lists, with user_id, item_id and score: a table, or a frame for large lists.
        facts: the statistics of the new lists, which summarize_lists returns; `coverage` is copied from them.
        rows: number of entries of the new lists.
        made_of: maps the name of each input of the lists to its digest.

    Raises:
        DataError: a figure exceeds its limit in `score.stop`. Even then, the table list_changes is published;
            it names this figure.
    """
    before = last_published(context.lake, context.run_date)
    earlier = read_manifest(before) if before else None
    changes: dict[str, Any] = {
        "coverage": facts["coverage"],
        "cold_share": cold_entries(lists, _clicked(context, dataset, lists)) / rows if rows else 0.0,
        "before": None,
        **(_against(context, lists, before, earlier) if before and earlier else {}),
    }
    excesses = find_excesses(context.config.score.stop, changes)
    changes |= {"held_back": bool(excesses), "excesses": [asdict(excess) for excess in excesses]}
    partition = context.lake.list_changes.partition(context.run_date)
    inputs = {**made_of, "config": config_digest(context.config, "score")}
    if earlier:
        inputs["before"] = earlier.digest
    publish_facts(partition, inputs=inputs, facts=changes)
    if excesses:
        without_limits = " ".join(f"--set score.stop.{excess.setting}=null" for excess in excesses)
        reasons = "; ".join(excess.message for excess in excesses)
        served = (
            f"the lists of {before.dt} are still the last published ones"
            if before
            else "there are no earlier lists"
        )
        raise DataError(
            f"the lists of {context.run_date} are not published: {reasons}; {served}",
            f"read the figures in {partition.path}/_MANIFEST.json or in the report, and docs/delivery.md; "
            f"to publish these lists anyway, run score_daily again with {without_limits}",
        )
    return changes


def find_excesses(stop: Stop, changes: Mapping[str, Any]) -> list[Excess]:
    """Returns the figures that exceed their limits. A figure without a value or limit is not checked."""
    excesses = []
    for figure, setting in _LIMITS.items():
        value, limit = changes.get(figure), getattr(stop, setting)
        if value is None or limit is None:
            continue
        if value < limit if setting.startswith("min_") else value > limit:
            excesses.append(Excess(figure, setting, value, limit))
    return excesses


def _clicked(context: RunContext, dataset: Dataset, lists: pa.Table | DataFrame) -> pa.Array | DataFrame:
    """Returns the items that were clicked in the train split, as an argument of `cold_entries`."""
    parts = split_partitions(context.lake, dataset, "train")
    in_process = _reads_files(context, sum(manifest.rows for _, manifest, _ in parts))
    if isinstance(lists, pa.Table) and parts and in_process:  # read_split fails if a split has no files
        columns = (ITEM_KEY, LABEL)
        of_files = [
            StoredRows.of(partition, manifest, label, columns) for partition, manifest, label in parts
        ]
        rows: ReadableRows = union_stored(of_files)
    else:
        rows = read_split(context, dataset, ["train"], (ITEM_KEY, LABEL))
    clicked = query("SELECT DISTINCT item_key FROM {rows} WHERE label = 1", rows=rows)
    if isinstance(lists, pa.Table):
        items = clicked if isinstance(clicked, pa.Table) else table_of(clicked)
        return items[ITEM_KEY].combine_chunks()
    return clicked


def _reads_files(context: RunContext, rows: int) -> bool:
    """Returns whether this process reads a table with this number of rows. If not, Spark reads it."""
    return context.in_process or rows <= ROWS_IN_DRIVER


def _against(
    context: RunContext, lists: pa.Table | DataFrame, before: Partition, manifest: Manifest
) -> dict[str, Any]:
    """Computes the figures that compare the new lists with the earlier lists in the partition `before`."""
    columns = ["user_id", "item_id", "score"]
    if isinstance(lists, pa.Table) and _reads_files(context, manifest.rows):
        earlier: pa.Table | DataFrame = read_table(before, manifest, columns=columns)
    else:
        lists = frame_of(context.spark, lists)
        earlier = rows_of(context.spark, before, manifest, columns=columns)
    compared = compare_lists(lists, earlier)
    drift = drift_of(bin_numbers(score_bins(earlier), score_bins(lists), 0, 0))
    return {
        "before": before.dt,
        **asdict(compared),
        "users_lost_share": compared.users_lost_share,
        "coverage_before": manifest.facts.get("coverage"),
        # A PSI is ignored if random variation of lists of this size explains it.
        "score_psi": drift and drift.psi_above_noise,
        "score_psi_noise": drift and drift.noise,
        "score_moved": drift
        and {"range": drift.moved, "before": drift.moved_train_share, "today": drift.moved_day_share},
    }


# The code below compares the new lists of a run with the lists that were published earlier. Small lists are
# Arrow tables in the driver, and other lists are Spark frames. Both give the same figures.

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
            the users with both lists; None without such users.
        jaccard: |intersection| / |union| of a user's two lists, averaged over the users with both lists; None
            without such users.
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
        before: the same columns of the earlier lists. Its type is the type of `today`.
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
    """Returns the number of list entries whose item has no click.

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

    The result maps the key of each bin (metrics.psi) to the number of list entries whose score is in
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
