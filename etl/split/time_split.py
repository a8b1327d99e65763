"""Which rows are train, validation and test: always by time."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from datetime import date, timedelta
from fractions import Fraction
from itertools import accumulate

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from conf.errors import DataError
from conf.types import Split, SplitConfig
from storage.feature_spec import EVENT_TIME, LABEL, ROW_ID, USER_KEY

SPLIT = "split"
# The day a prepared row comes from: an ISO date, or the run date of a log that is one undated table.
DAY = "_day"
# Part of what identifies prepared rows: change it when the same log without times is cut elsewhere.
CUT = "by rank of the kept rows"
# Positions are counted in blocks of 2**16: some thousand blocks for a log of hundreds of millions of rows.
_BLOCK_BITS = 16


def plan_days(config: SplitConfig, run_date: str, has_log: Callable[[str], bool]) -> dict[Split, list[str]]:
    """The days of each split for a run date, oldest first; train days without a log are left out.

    Raises:
        DataError: a validation or test day has no log, or fewer than `min_train_days` train days have one.
    """
    length = config.train_days + config.validation_days + config.test_days
    last = date.fromisoformat(run_date)
    days = [(last - timedelta(days=back)).isoformat() for back in reversed(range(length))]
    train, later = days[: config.train_days], days[config.train_days :]
    missing = [day for day in later if not has_log(day)]
    if missing:
        raise DataError(
            f"no raw log for {missing}, which run date {run_date} validates and tests on",
            "deliver these days",
        )
    present = [day for day in train if has_log(day)]
    if len(present) < config.min_train_days:
        raise DataError(
            f"only {len(present)} of the train days {train[0]}..{train[-1]} have a raw log; "
            f"split.min_train_days={config.min_train_days}",
            "deliver the missing days, choose a later --run-date, or lower split.min_train_days",
        )
    return {
        "train": present,
        "validation": later[: config.validation_days],
        "test": later[config.validation_days :],
    }


def assign_split(rows: DataFrame, config: SplitConfig) -> DataFrame:
    """The rows of one partition with a string column `split`, for `fraction` and `leave_last_out`."""
    return _by_fraction(rows, config) if config.by == "fraction" else _leave_last_out(rows)


def _by_fraction(rows: DataFrame, config: SplitConfig) -> DataFrame:
    """Cut by event time, where there is one, otherwise by position; rows of one instant stay together.

    A row is train if its rank among the rows, from 0 on, is at most (rows - 1) * train, which is the percentile of the
    positions. Rows that were left out before, such as quarantined ones, do not count.
    """
    timed = EVENT_TIME in rows.columns
    cuts = _time_cuts(rows, config) if timed else _position_cuts(rows, config)
    if cuts is None:
        raise DataError("the log holds no good row", "look into the quarantine for the reasons")
    first, second = cuts
    order = F.col(EVENT_TIME if timed else ROW_ID)
    split = F.when(order <= first, "train").when(order <= second, "validation").otherwise("test")
    return rows.withColumn(SPLIT, split)


def _time_cuts(rows: DataFrame, config: SplitConfig) -> list[float] | None:
    """The percentiles of event_time (µs) that end train and validation; None without rows."""
    shares = [config.train, config.train + config.validation]
    # Each row counts once, as a long: the accelerator takes no other frequency.
    once = F.lit(1).cast("bigint")
    cuts = F.percentile(EVENT_TIME, F.array(*(F.lit(share) for share in shares)), once)
    found = rows.agg(cuts.alias("cuts")).first()
    return None if found is None else found["cuts"]


def _position_cuts(rows: DataFrame, config: SplitConfig) -> list[int] | None:
    """row_id of the last train row and of the last validation row; None without rows.

    Rows are counted by block of positions, which is one pass and a few numbers a block. The rows of a block are read
    only where a cut falls into it and some of its positions are missing, because a row there was left out.
    """
    block = F.shiftright(ROW_ID, _BLOCK_BITS)
    counted = rows.groupBy(block.alias("block")).agg(
        F.count(F.lit(1)).alias("rows"), F.min(ROW_ID).alias("first"), F.max(ROW_ID).alias("last")
    )
    blocks = sorted(counted.collect(), key=lambda each: each["block"])
    total = sum(each["rows"] for each in blocks)
    if not total:
        return None
    # The shares as they were written: 0.7 + 0.2 in binary is less than 0.9, and would lose a row of ten.
    train = Fraction(str(config.train))
    ranks = [math.floor((total - 1) * share) for share in (train, train + Fraction(str(config.validation)))]
    ends = list(accumulate(each["rows"] for each in blocks))
    holders = [blocks[bisect_right(ends, rank)] for rank in ranks]
    gaps = {each["block"] for each in holders if each["last"] - each["first"] + 1 != each["rows"]}
    positions: dict[int, list[int]] = {}
    if gaps:
        inside = rows.where(block.isin(*gaps)).groupBy(block.alias("block"))
        found = inside.agg(F.sort_array(F.collect_list(ROW_ID)).alias("positions")).collect()
        positions = {each["block"]: each["positions"] for each in found}
    cuts = []
    for rank, holder in zip(ranks, holders, strict=True):
        within = rank - (ends[blocks.index(holder)] - holder["rows"])
        known = positions.get(holder["block"])
        cuts.append(known[within] if known else holder["first"] + within)
    return cuts


def _leave_last_out(rows: DataFrame) -> DataFrame:
    """Each user's rows from the latest positive on are test, from the one before it on validation, the rest train.

    A user with one positive has no validation rows, a user with none only train rows.
    """
    order = [F.asc(EVENT_TIME), F.asc(ROW_ID)] if EVENT_TIME in rows.columns else [F.asc(ROW_ID)]
    by_user = Window.partitionBy(USER_KEY)
    until_now = by_user.orderBy(*order).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    total = F.sum(LABEL).over(by_user)
    later = total - F.sum(LABEL).over(until_now)  # positives strictly after this row
    split = (
        F.when(total == 0, "train")
        .when(later == 0, "test")
        .when((later == 1) & (total > 1), "validation")
        .otherwise("train")
    )
    return rows.withColumn(SPLIT, split)
