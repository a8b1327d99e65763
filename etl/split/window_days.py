"""The window of days that a run reads, which ends on the run date: its train, validation and test days."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta

from conf.errors import DataError
from conf.types import Split, SplitConfig


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
