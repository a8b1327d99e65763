"""Which rows are train, validation and test: always by time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from conf.errors import DataError
from conf.feature_spec import EVENT_TIME, LABEL, ROW_ID, USER_KEY
from conf.types import Split, SplitConfig

SPLIT = "split"
# The day a prepared row comes from: an ISO date, or the run date of a log that is one undated table.
DAY = "_day"


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
    """Cut by event time, where there is one, otherwise by the position of the row. Rows of one instant stay together."""
    timed = EVENT_TIME in rows.columns
    order = EVENT_TIME if timed else ROW_ID
    shares = [config.train, config.train + config.validation]
    # Positions are dense, so their quantiles follow from the last one; times are counted exactly.
    # Each row counts once, as a long: the accelerator takes no other frequency.
    once = F.lit(1).cast("bigint")
    cuts = F.percentile(order, F.array(*(F.lit(share) for share in shares)), once)
    value = cuts if timed else F.max(ROW_ID)
    found = rows.agg(value.alias("cuts")).first()
    if found is None or found["cuts"] is None:
        raise DataError("the log holds no good row", "look into the quarantine for the reasons")
    first, second = found["cuts"] if timed else [found["cuts"] * share for share in shares]
    split = (
        F.when(F.col(order) <= first, "train").when(F.col(order) <= second, "validation").otherwise("test")
    )
    return rows.withColumn(SPLIT, split)


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
