"""Computes each user's history, the last clicks up to the run date.

Lists are scored with these histories. `histories_of` uses Arrow tables on one machine, and Spark frames on
clusters. The results are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from conf.types import SPLITS, History, Split, SplitConfig
from etl.prepare.click_tables import click_tables, clicks_of_log, clicks_of_parts, good_rows_of
from etl.prepare.histories import as_history as as_history_table
from etl.prepare.histories import lists_of_clicks, recent_clicks
from etl.prepare.splits import Cuts, time_cuts
from etl.raw.files import RawFiles
from etl.raw.splits import SPLIT, assign_split, last_ranks, no_good_row
from etl.spark.histories import as_history, clicks_before, last_clicks
from etl.spark.raw_frames import ordered_rows
from etl.workflow.feature_plan import FeaturePlan
from spark.workers import LocalWorkers, Workers
from storage.feature_spec import EVENT_TIME, ITEM_KEY, LABEL, ROW_ID, USER_KEY
from storage.manifest import digest_of
from storage.paths import LakePaths


@dataclass(frozen=True)
class LatestHistories:
    """The latest histories of all users with a click.

    Attributes:
        rows: user_key and the columns of `history`, one row per user. Users without a click have no row.
            The rows are a table with lists of dictionary codes if processes of this machine computed them,
            otherwise a frame. None if no user has a click.
        digest: a digest of everything on which `rows` depends, except the days of the run.
    """

    rows: pa.Table | DataFrame | None
    digest: str


def histories_of(
    workers: Workers,
    plan: FeaturePlan,
    lake: LakePaths,
    splits: Mapping[Split, Sequence[RawFiles]],
    *,
    before: Split | None = None,
) -> LatestHistories | None:
    """Returns the latest histories of a run: a table with LocalWorkers (without a JVM), otherwise a frame.

    See `latest_histories` for the rules and the other arguments.
    """
    if isinstance(workers, LocalWorkers):
        return latest_histories_table(workers, plan, lake, splits, before=before)
    return latest_histories(workers, plan, lake, splits, before=before)


def latest_histories(
    workers: Workers,
    plan: FeaturePlan,
    lake: LakePaths,
    splits: Mapping[Split, Sequence[RawFiles]],
    *,
    before: Split | None = None,
) -> LatestHistories | None:
    """Returns the latest histories of a run as a frame; None if the section `history` is not set.

    If metrics compare the lists with the test split, the histories contain no click of the test split.
    Otherwise the lists would be computed from the clicks that they must predict.

    Args:
        splits: maps each split to the raw files of its days.
        before: if set, the clicks of this split and of later splits are always left out.
    """
    history = plan.config.history
    if history is None:
        return None
    known = _known_splits(plan, before)
    earlier = clicks_before(workers, plan, lake)
    if earlier is not None:
        day_after = _day_after(splits, known)
        clicks, digest = earlier.before(day_after), earlier.digest_before(day_after)
    else:
        rows = assign_split(ordered_rows(workers, plan, splits["train"][0]), plan.config.split)
        clicks, digest = last_clicks(rows.where(F.col(SPLIT).isin(*known)), history.length), ""
    return LatestHistories(
        None if clicks is None else as_history(clicks, history), _digest(plan, known, digest)
    )


def latest_histories_table(
    workers: Workers,
    plan: FeaturePlan,
    lake: LakePaths,
    splits: Mapping[Split, Sequence[RawFiles]],
    *,
    before: Split | None = None,
) -> LatestHistories | None:
    """Returns the result of `latest_histories` as a table. The arguments are the same."""
    history = plan.config.history
    if history is None:
        return None
    known = _known_splits(plan, before)
    earlier = click_tables(workers, plan, lake)
    clicks: pa.Table | None
    if earlier is not None:
        day_after = _day_after(splits, known)
        clicks, digest = earlier.before(day_after), earlier.digest_before(day_after)
    else:
        of_splits = _clicks_of_splits(workers, plan, splits["train"][0], len(known), history)
        clicks, digest = lists_of_clicks(of_splits), ""
    return LatestHistories(
        None if clicks is None else as_history_table(clicks, history), _digest(plan, known, digest)
    )


def _known_splits(plan: FeaturePlan, before: Split | None) -> list[Split]:
    """Returns the splits whose clicks are in the histories: all splits before the first omitted split."""
    known = list(SPLITS[: SPLITS.index(before)] if before else SPLITS)
    if plan.config.measure.against == "test_split" and "test" in known:
        known.remove("test")
    return known


def _day_after(splits: Mapping[Split, Sequence[RawFiles]], known: Sequence[Split]) -> str:
    """Returns the day after the last day of the known splits."""
    last = max(day.dt for split in known for day in splits[split])
    return (date.fromisoformat(last) + timedelta(days=1)).isoformat()


def _digest(plan: FeaturePlan, known: Sequence[Split], digest_of_clicks: str) -> str:
    return digest_of([plan.methods, known, digest_of_clicks])


def _clicks_of_splits(
    workers: Workers, plan: FeaturePlan, raw: RawFiles, splits: int, history: History
) -> pa.Table:
    """Returns the last clicks of each user (recent_clicks) in the first splits of a log that is one table.

    Args:
        workers, plan, raw: the workers, the plan of the run, and the files of the log.
        splits: the number of splits whose rows are used.
        history: the section `history` of the configuration.
    """
    by, timed = plan.config.split.by, plan.config.log.event_time is not None
    if by == "leave_last_out":
        # The split of a click depends only on the user's other clicks. Only a user's last clicks can belong
        # to splits that are left out.
        left_out = len(SPLITS) - splits
        parts = clicks_of_log(workers, plan, raw)
        clicks = clicks_of_parts(parts, history.length + left_out, timed=timed)
        return recent_clicks(_without_last(clicks, left_out), history.length)
    if by == "fraction":
        parts = good_rows_of(
            workers, plan, raw, [USER_KEY, ITEM_KEY, LABEL, ROW_ID, *([EVENT_TIME] if timed else [])]
        )
        return _clicks_before_cut(parts, plan.config.split, splits, history.length, timed=timed)
    if by == "day":
        raise ValueError("internal error, please report: rows of one day are all in the same split")
    assert_never(by)


def _without_last(clicks: pa.Table, left_out: int) -> pa.Table:
    """Leaves out the last clicks of each user.

    A user's last click is in the test split, and the click before it is in the validation split.

    Args:
        clicks: the result of `recent_clicks`.
        left_out: 0, 1 (the test split) or 2 (both).
    """
    users = clicks.column(USER_KEY).combine_chunks().indices.to_numpy()
    firsts = np.flatnonzero(np.diff(users, prepend=-1))
    counts = np.diff(firsts, append=len(users))
    later = np.repeat(firsts + counts, counts) - np.arange(len(users)) - 1
    return clicks.filter(pa.array(later >= left_out))


def _clicks_before_cut(
    parts: Iterator[pa.Table], config: SplitConfig, splits: int, length: int, *, timed: bool
) -> pa.Table:
    """Returns the last clicks of each user in the first splits (etl.raw.splits, by `fraction`).

    Args:
        parts: all good rows of the log.
        config: the shares of the splits.
        splits: the number of splits whose rows are used.
        length: maximum number of clicks to keep for a user.
        timed: whether the rows have event_time.

    Raises:
        DataError: there are no rows.
    """
    name = EVENT_TIME if timed else ROW_ID
    order, clicks = [np.zeros(0, np.int64)], []
    for part in parts:
        order.append(part.column(name).to_numpy())
        clicks.append(part.filter(pc.equal(part.column(LABEL), 1)))
    values = np.concatenate(order)
    if not len(values):
        raise no_good_row()
    if splits < len(SPLITS):
        cut = _cuts_of(values, config, timed)[splits - 1]
        clicks = [rows.filter(pa.array(rows.column(name).to_numpy() <= cut)) for rows in clicks]
    return clicks_of_parts(iter(clicks), length, timed=timed)


def _cuts_of(values: np.ndarray, config: SplitConfig, timed: bool) -> Cuts:
    """Returns the times (µs), or the row_ids, at which the train split and the validation split end."""
    if timed:
        return time_cuts(values, np.ones(len(values), np.int64), config) or (0.0, 0.0)
    first, second = (int(np.partition(values, rank)[rank]) for rank in last_ranks(len(values), config))
    return first, second
