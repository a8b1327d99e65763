"""Computes the histories with which lists are scored: each user's last clicks up to the run date."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.types import SPLITS, Config, Split
from etl.raw.files import RawFiles
from etl.spark.histories import as_history, last_clicks
from etl.spark.prepared_rows import clicks_before, logged_rows, preparation
from etl.split.time_split import SPLIT
from spark.workers import Workers
from storage.manifest import digest_of
from storage.paths import Lake


@dataclass(frozen=True)
class LatestHistories:
    """The latest histories of all users with a click.

    Attributes:
        rows: a table or a frame with user_key and the column `history.column`, one row per user. Users
            without a click have no row. None if no user has a click.
        digest: a digest of everything on which `rows` depends, except the days of the run.
    """

    rows: pa.Table | DataFrame | None
    digest: str


def latest_histories(
    spark: SparkSession,
    config: Config,
    lake: Lake,
    splits: Mapping[Split, Sequence[RawFiles]],
    *,
    before: Split | None = None,
) -> LatestHistories | None:
    """Returns the latest histories of a run; None if the section `history` is not set.

    If the lists are compared with the test split, no click of the test split is in a history, because the
    lists would be computed from the clicks on which they are measured.

    Args:
        splits: maps each split to the raw files of its days.
        before: if set, the clicks of this split and of later splits are left out in any case.
    """
    history = config.history
    if history is None:
        return None
    known = list(SPLITS[: SPLITS.index(before)] if before else SPLITS)
    if config.measure.against == "test_split" and "test" in known:
        known.remove("test")
    earlier = clicks_before(spark, config, lake)
    if earlier is not None:
        last = max(day.dt for split in known for day in splits[split])
        day_after = (date.fromisoformat(last) + timedelta(days=1)).isoformat()
        clicks, digest = earlier.before(day_after), earlier.digest_before(day_after)
    else:
        rows = logged_rows(spark, config, lake, splits["train"][0])
        clicks, digest = last_clicks(rows.where(F.col(SPLIT).isin(*known)), history.length), ""
    return LatestHistories(
        None if clicks is None else as_history(clicks, history),
        digest_of([preparation(config), known, digest]),
    )


def histories_of(
    workers: Workers,
    config: Config,
    lake: Lake,
    splits: Mapping[Split, Sequence[RawFiles]],
    *,
    before: Split | None = None,
) -> LatestHistories | None:
    """Returns the latest histories of a run (`latest_histories`, which has the same arguments)."""
    if config.history is None:
        return None
    return latest_histories(workers.spark, config, lake, splits, before=before)
