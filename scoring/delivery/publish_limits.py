"""Compares new lists with the last published lists. If a limit is exceeded, the new lists are not published.

The result of the comparison is always published, as the table `list_changes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from conf.errors import DataError
from conf.load import config_digest
from conf.types import Stop
from etl.latest.latest_rows import ROWS_IN_DRIVER
from metrics.psi import bin_numbers, drift_of
from scoring.inputs.feature_rows import read_split
from scoring.inputs.list_tables import last_published
from scoring.ranking.list_changes import cold_entries, compare_lists, score_bins
from spark.arrow_frames import frame_of, table_of
from spark.rows import ReadableRows, query
from spark.stored_rows import StoredRows, union_stored
from storage.dataset import Dataset, split_partitions
from storage.feature_spec import ITEM_KEY, LABEL
from storage.manifest import Manifest, read_manifest
from storage.parquet_files import read_table
from storage.paths import Partition
from storage.publish import publish_facts, rows_of
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
        """Returns a phrase for error messages, with the figure, its value and its limit."""
        side = "below" if self.setting.startswith("min_") else "above"
        return f"{self.figure}={self.value:.4g} is {side} score.stop.{self.setting}={self.limit:g}"


# The key of score.stop that limits each figure.
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
    """Publishes the table list_changes and returns its facts. Call it before the lists are published.

    Args:
        context: the context of the run.
        dataset: the dataset of the run date.
        lists: the new lists, with user_id, item_id and score: a table, or a frame for large lists.
        facts: the facts of the new lists, as summarize_lists returns them. Their `coverage` is copied.
        rows: number of entries of the new lists.
        made_of: maps the name of each input of the lists to the digest (hash) of the input.

    Raises:
        DataError: a figure exceeds its limit in `score.stop`. The table list_changes is published even then,
            and names this figure.
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
            f"the lists of {context.run_date} are held back: {reasons}; {served}",
            f"read {partition.path}/_MANIFEST.json (report.py shows it), see docs/delivery.md; "
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
    """Returns the items that were clicked in the train split, in the form that `cold_entries` needs."""
    parts = split_partitions(context.lake, dataset, "train")
    in_process = _reads_files(context, sum(manifest.rows for _, manifest, _ in parts))
    if isinstance(lists, pa.Table) and parts and in_process:  # without files, read_split fails
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
    """Returns whether this process reads the files of a table with so many rows. Otherwise, Spark does."""
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
        # A PSI counts only if it is larger than chance explains for lists of this size.
        "score_psi": drift and drift.psi_above_noise,
        "score_psi_noise": drift and drift.noise,
        "score_moved": drift
        and {"range": drift.moved, "before": drift.moved_train_share, "today": drift.moved_day_share},
    }
