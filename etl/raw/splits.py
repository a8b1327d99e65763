"""Divides the rows of a log into the splits train, validation and test, and draws negatives.

The setting `split.by` chooses the method. With `day`, all rows of a day are in the same split. The methods
`fraction` and `leave_last_out` divide the rows of one partition. A negative is an added row with label 0,
which has an item for which the user has no row (`add_negatives`). This module divides rows and draws
negatives in Spark frames. etl/prepare/prepared_rows.py does the same without Spark, with the same results.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING, assert_never

from conf.errors import DataError
from conf.lazy_imports import F, Window
from conf.types import SPLITS, Negatives, Split, SplitConfig
from storage.feature_spec import EVENT_TIME, ITEM_KEY, LABEL, ROW_ID, USER_KEY, WEIGHT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SPLIT = "split"

# The day of a prepared row: an ISO date, or the run date if the log is one undated table.
DAY = "_day"

# This text is part of the digest of prepared rows. Change it if the code divides the same log differently.
CUT = "by rank of the kept rows"

# Rows are counted in blocks of 2**16 row_ids: a few thousand blocks for hundreds of millions of rows.
_BLOCK_BITS = 16


def assign_split(rows: DataFrame, config: SplitConfig) -> DataFrame:
    """Adds a string column `split` to the rows of one partition, by the method `config.by`.

    Raises:
        DataError: there are no rows.
        ValueError: `config.by` is `day`, so all rows of a partition are in one split.
    """
    if config.by == "fraction":
        return _by_fraction(rows, config)
    if config.by == "leave_last_out":
        return _leave_last_out(rows)
    if config.by == "day":
        raise ValueError(
            "internal error, please report: with split.by=day, rows of one day cannot be divided into splits"
        )
    assert_never(config.by)


def _by_fraction(rows: DataFrame, config: SplitConfig) -> DataFrame:
    """Divides rows by event time, or by row_id if the log has no times.

    Let n be the number of rows, and rank the index (from 0) of a row in the order of event_time or row_id. A
    row is in the train split if rank <= (n - 1) * `train`. This is the rule for percentiles. Rows with equal
    times are in the same split. Dropped rows, such as quarantined rows, have no rank and are not counted in
    n.

    Raises:
        DataError: there are no rows.
    """
    timed = EVENT_TIME in rows.columns
    cuts = _time_cuts(rows, config) if timed else _position_cuts(rows, config)
    if cuts is None:
        raise no_good_row()
    first, second = cuts
    order = F.col(EVENT_TIME if timed else ROW_ID)
    split = F.when(order <= first, "train").when(order <= second, "validation").otherwise("test")
    return rows.withColumn(SPLIT, split)


def no_row(dt: str, path: str) -> DataError:
    """Returns the error for a required day whose raw log has no row. `path` is the first file of the log."""
    return DataError(
        f"the raw log of {dt} has no rows: {path}",
        f"deliver the raw log of {dt} again",
    )


def no_good_row() -> DataError:
    """Returns the error for a log that cannot be divided because it has no good row."""
    return DataError(
        "the log has no good row",
        "correct the raw log; the quarantine has a reason for each rejected row",
    )


def no_training_row(days: Sequence[str], config: SplitConfig) -> DataError:
    """Returns the error for a fit if the train split has no row on any of `days`."""
    remedy = {
        "day": "check which rows the operators of `prepare` leave out",
        "fraction": "raise split.train, or check which rows the operators of `prepare` leave out",
        "leave_last_out": "deliver a log in which users have rows before their last two positive rows: only "
        "these rows are in the train split",
    }
    return DataError(
        f"the train split (split.by={config.by}) of {', '.join(days)} has no rows, so nothing can be fitted",
        remedy[config.by],
    )


def _time_cuts(rows: DataFrame, config: SplitConfig) -> list[float] | None:
    """Returns the percentiles of event_time (µs) at which the train split and the validation split end.

    Returns None if there are no rows.
    """
    shares = [config.train, config.train + config.validation]
    # The frequency of each row is 1. Its type is long, because the RAPIDS accelerator supports no other type
    # here.
    once = F.lit(1).cast("bigint")
    cuts = F.percentile(EVENT_TIME, F.array(*(F.lit(share) for share in shares)), once)
    row = rows.agg(cuts.alias("cuts")).first()
    return None if row is None else row["cuts"]


def _position_cuts(rows: DataFrame, config: SplitConfig) -> list[int] | None:
    """Returns the row_ids of the last train row and of the last validation row; None if there are no rows.

    One pass counts the rows of each block of 2**16 row_ids. A block is read again only if a split ends in it
    and some of its row_ids are missing. Row_ids are missing if their rows were dropped.
    """
    block = F.shiftright(ROW_ID, _BLOCK_BITS)
    counted = rows.groupBy(block.alias("block")).agg(
        F.count(F.lit(1)).alias("rows"), F.min(ROW_ID).alias("first"), F.max(ROW_ID).alias("last")
    )
    blocks = sorted(counted.collect(), key=lambda row: row["block"])
    total = sum(row["rows"] for row in blocks)
    if not total:
        return None
    ranks = last_ranks(total, config)
    ends = list(accumulate(row["rows"] for row in blocks))
    blocks_of_cuts = [blocks[bisect_right(ends, rank)] for rank in ranks]
    with_gaps = {row["block"] for row in blocks_of_cuts if row["last"] - row["first"] + 1 != row["rows"]}
    row_ids: dict[int, list[int]] = {}
    if with_gaps:
        inside = rows.where(block.isin(*with_gaps)).groupBy(block.alias("block"))
        collected = inside.agg(F.sort_array(F.collect_list(ROW_ID)).alias("positions")).collect()
        row_ids = {row["block"]: row["positions"] for row in collected}
    cuts = []
    for rank, row in zip(ranks, blocks_of_cuts, strict=True):
        index_in_block = rank - (ends[blocks.index(row)] - row["rows"])
        known = row_ids.get(row["block"])
        cuts.append(known[index_in_block] if known else row["first"] + index_in_block)
    return cuts


def last_ranks(total: int, config: SplitConfig) -> tuple[int, int]:
    """Returns the indices, in time order, of the last train row and of the last validation row.

    Indices count from 0. `total`, the number of rows, is at least 1.
    """
    # Use exact decimals. In binary floating point, 0.7 + 0.2 is less than 0.9, so one of ten rows would be in
    # a wrong split.
    train = Fraction(str(config.train))
    first, second = (
        math.floor((total - 1) * share) for share in (train, train + Fraction(str(config.validation)))
    )
    return first, second


def _leave_last_out(rows: DataFrame) -> DataFrame:
    """Divides the rows of each user at the user's last two positive rows: one for validation, one for test.

    The test split contains the user's last positive row and all later rows. The validation split contains the
    second last positive row and the rows between it and the test split. The train split contains all earlier
    rows. A user with only one positive row has no validation rows. A user without positive rows has only
    train rows.
    """
    order = [F.asc(EVENT_TIME), F.asc(ROW_ID)] if EVENT_TIME in rows.columns else [F.asc(ROW_ID)]
    by_user = Window.partitionBy(USER_KEY)
    until_now = by_user.orderBy(*order).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    total = F.sum(LABEL).over(by_user)
    later = total - F.sum(LABEL).over(until_now)  # number of positive rows of the user after this row
    split = (
        F.when(total == 0, "train")
        .when(later == 0, "test")
        .when((later == 1) & (total > 1), "validation")
        .otherwise("train")
    )
    return rows.withColumn(SPLIT, split)


# The function below finds the days that a run reads: train, validation and test days. The last of these days
# is the run date.


def plan_days(config: SplitConfig, run_date: str, has_log: Callable[[str], bool]) -> dict[Split, list[str]]:
    """Returns the days of each split for a run date, oldest first. Train days without a log are ignored.

    Raises:
        DataError: a validation or test day has no log, or fewer than `min_train_days` train days have a log.
    """
    length = config.train_days + config.validation_days + config.test_days
    last = date.fromisoformat(run_date)
    days = [(last - timedelta(days=back)).isoformat() for back in reversed(range(length))]
    train, later = days[: config.train_days], days[config.train_days :]
    missing = [day for day in later if not has_log(day)]
    if missing:
        raise DataError(
            f"there is no raw log for {missing}, or its files are empty; these are validation or test days "
            f"of run date {run_date}",
            "deliver the raw logs of these days",
        )
    present = [day for day in train if has_log(day)]
    if len(present) < config.min_train_days:
        raise DataError(
            f"only {len(present)} of the train days {train[0]}..{train[-1]} have a raw log, but "
            f"split.min_train_days={config.min_train_days}",
            "deliver the raw logs of more train days, choose a later --run-date, or lower "
            "split.min_train_days",
        )
    return {
        "train": present,
        "validation": later[: config.validation_days],
        "test": later[config.validation_days :],
    }


# The functions below draw negatives in Spark frames, for logs that record only what users chose.

# This text is part of the digest of prepared rows. Change it if the code draws different negatives from the
# same log. Jobs then prepare the rows again.
DRAW = "from the split of the row and before"
_SINCE = "_since"


def add_negatives(rows: DataFrame, config: Negatives, item_column: str, weighted: bool = False) -> DataFrame:
    """Adds up to `per_positive` negatives for each positive row, with items for which the user has no row.

    The items of a positive row's negatives are drawn only from rows of the same split and of earlier splits:
    for a train row from the train rows, for a test row from all rows. So validation and test rows do not
    change the negatives of a train row. If there is no column `split` (one day of a log that is stored by
    day), items are drawn from all rows of the day.

    With `train: false`, no negatives are added for train rows. The negatives of the other splits stay the
    same.

    Let m be the number of distinct items in the rows from which items are drawn for a positive row. These
    items are ordered by the first split in which they occur, then by item key. Draw n, from 1 to
    `per_positive`, takes the item at index pmod(xxhash64(row_id, n, seed), m). If the user has a row with the
    drawn item among the rows from which items are drawn, the draw adds no negative. The result depends only
    on the log and the configuration.

    A negative has label 0 and, if rows have weights, the weight 1. Except for the item, its other columns
    have the values of the positive row. The row_id of every row becomes row_id * (per_positive + 1) + n. Here
    n is 0 for the rows of the log, and the number of the draw for negatives.

    Args:
        rows: frame with keys, label and row_id.
        config: the section `negatives`: maximum number of negatives per positive row, the seed, and whether
            train rows get negatives. With `train: false`, the frame must have the column `split`.
        item_column: the raw column of the item key.
        weighted: whether rows have the column `weight`.
    """
    stride = config.per_positive + 1
    since = rows.select("*", _split_number(rows).alias(_SINCE))
    items = since.groupBy(F.col(ITEM_KEY).alias("_item"), F.col(item_column).alias("_raw_item")).agg(
        F.min(_SINCE).alias("_item_since")
    )
    in_order = Window.orderBy("_item_since", "_item")
    numbered = items.select("_item", "_raw_item", (F.row_number().over(in_order) - 1).alias("_position"))
    wanted = F.col(LABEL) == 1
    if not config.train:
        wanted &= F.col(SPLIT) != "train"
    positives = since.where(wanted).withColumn(
        "_draw", F.explode(F.sequence(F.lit(1), F.lit(config.per_positive)))
    )
    position = F.pmod(F.xxhash64(ROW_ID, "_draw", F.lit(config.seed)), _visible_items(items))
    drawn = positives.withColumn("_position", position).join(F.broadcast(numbered), "_position")
    observed = since.groupBy(F.col(USER_KEY).alias("_seen_user"), F.col(ITEM_KEY).alias("_seen_item")).agg(
        F.min(_SINCE).alias("_seen_since")
    )
    fresh = drawn.join(
        observed,
        (F.col(USER_KEY) == F.col("_seen_user"))
        & (F.col("_item") == F.col("_seen_item"))
        & (F.col("_seen_since") <= F.col(_SINCE)),
        "left_anti",
    )
    negatives = fresh.withColumns(
        {
            ITEM_KEY: F.col("_item"),
            item_column: F.col("_raw_item"),
            LABEL: F.lit(0.0).cast("float"),
            ROW_ID: F.col(ROW_ID) * stride + F.col("_draw"),
            **({WEIGHT: F.lit(1.0).cast("float")} if weighted else {}),
        }
    )
    logged = rows.withColumn(ROW_ID, F.col(ROW_ID) * stride)
    return logged.unionByName(negatives.select(*rows.columns))


def add_to_log_rows(rows: DataFrame, stride: int, add: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """Adds columns to the rows of the log, and gives negatives the values of their positive rows.

    etl.prepare.prepared_rows.add_to_log_rows does the same with Arrow tables, and describes the arguments.
    """
    added = add(rows.where(F.col(ROW_ID) % stride == 0))
    new = [name for name in added.columns if name not in rows.columns]
    of_log = added.select(F.col(ROW_ID).alias("_log_row"), *new)
    return (
        rows.withColumn("_log_row", F.col(ROW_ID) - F.col(ROW_ID) % stride)
        .join(of_log, "_log_row")
        .drop("_log_row")
    )


def drawn_rows(config: Negatives) -> str:
    """Returns an SQL condition that is true for drawn negatives in a feature table, else false."""
    return f"{ROW_ID} % {config.per_positive + 1} <> 0"


def _split_number(rows: DataFrame) -> Column:
    """Returns the index of a row's split: 0 for train (or without splits), 1 for validation, 2 for test."""
    number = F.lit(0)
    if SPLIT in rows.columns:
        for index, split in enumerate(SPLITS):
            number = F.when(F.col(SPLIT) == split, F.lit(index)).otherwise(number)
    return number


def _visible_items(items: DataFrame) -> Column:
    """Returns an expression for how many items occur in a row's split (column `_since`) or before it."""
    first_seen = {row["_item_since"]: row["count"] for row in items.groupBy("_item_since").count().collect()}
    visible = list(accumulate(first_seen.get(index, 0) for index in range(len(SPLITS))))
    count = F.lit(visible[0])
    for index, total in enumerate(visible[1:], start=1):
        count = F.when(F.col(_SINCE) == index, F.lit(total)).otherwise(count)
    return count
