"""The options of a dataset that Airflow needs when it parses a DAG file: names, schedules, limits, pool.

The Airflow Variable of the dataset contains all other settings. Tasks read it when they run (settings.py).
The options are arguments in a DAG file. If the file read a Variable, Airflow would query its database
whenever the file is parsed and whenever a task starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

from croniter import croniter

DEFAULT = "default"
VARIABLE = "nightrank"
POOL = "nightrank_spark"
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_MOST_CHARACTERS = 40
_MOST_RETRIES = 20
_MOST_HOURS = 24 * 14
_FIXED_TIME = re.compile(r"\d{1,2} \d{1,2} ")
_EVERY_DAY = re.compile(r"\d{1,2} \d{1,2} \* \* \*")
_HOURS = 3.0
# Default time limits in hours, for jobs that may take longer than others.
_HOURS_OF_JOBS = {"train_model": 12.0, "train_retriever": 6.0, "refit_model": 12.0}
JOBS = (
    "build_candidates",
    "build_features",
    "check_lists",
    "check_quality",
    "deliver_recommendations",
    "evaluate_model",
    "learn_blend",
    "measure_recommendations",
    "prune",
    "refit_model",
    "report",
    "score_daily",
    "score_rows",
    "train_model",
    "train_retriever",
)


class DatasetError(ValueError):
    """An option of a dataset is wrong. The message names the dataset, option, value and remedy."""


@dataclass(frozen=True)
class Dataset:
    """The options of a dataset. Airflow shows a wrong option as an import error of the DAG file.

    Attributes:
        name: part of the ids of DAGs and assets, and of the name of the Variable. For the dataset `default`,
            the ids contain no name, and the Variable is `nightrank`.
        daily_cron: when `daily_recommendations` runs: minute, hour, and `* * *`.
        weekly_cron: when `weekly_training` runs: a fixed minute and hour, on any days.
        timezone: the IANA name of the timezone of both schedules, such as Europe/Berlin.
        daily_late_hours: hours after which a daily run that has not ended is reported as late.
        weekly_late_hours: hours after which a weekly run that has not ended is reported as late.
        log_wait_hours: how many hours a run waits for its raw log.
        task_hours: maximum duration by job, in hours. `default` applies to jobs that have no other limit.
        prune_keep_days: how many days of data the last task of `weekly_training` keeps. This task deletes
            older dates and unused versions. None: no task deletes data.
        retries: how often Airflow retries a failed task. It does not retry after exit code 2 or 3.
        pool: the Airflow pool of the tasks that run jobs.

    Raises:
        DatasetError: an option is wrong.
    """

    name: str = DEFAULT
    daily_cron: str = "0 3 * * *"
    weekly_cron: str = "0 12 * * 0"
    timezone: str = "UTC"
    daily_late_hours: float = 6
    weekly_late_hours: float = 24
    log_wait_hours: float = 12
    task_hours: Mapping[str, float] = field(default_factory=dict)
    prune_keep_days: int | None = None
    retries: int = 2
    pool: str = POOL

    def __post_init__(self) -> None:
        """Checks all options."""
        self._check_name()
        self._check_cron("daily_cron", _EVERY_DAY, 'a minute and an hour of every day, such as "0 3 * * *"')
        self._check_cron(
            "weekly_cron", _FIXED_TIME, 'one minute and one hour, then days, such as "0 12 * * 0"'
        )
        try:
            ZoneInfo(self.timezone)
        except (OSError, TypeError, ValueError, KeyError) as error:
            raise self._wrong(
                "timezone", "is not a timezone", "write an IANA name such as Europe/Berlin"
            ) from error
        for option in ("daily_late_hours", "weekly_late_hours", "log_wait_hours"):
            self._check_hours(option, getattr(self, option))
        if not isinstance(self.task_hours, Mapping):
            raise self._wrong("task_hours", "is not a mapping", 'write {"train_model": 20, "default": 4}')
        for job, hours in self.task_hours.items():
            if job not in (*JOBS, DEFAULT):
                raise self._wrong(
                    "task_hours",
                    f"names the unknown job {job!r}",
                    f"use {DEFAULT} or one of {', '.join(JOBS)}",
                )
            self._check_hours("task_hours", hours)
        days = self.prune_keep_days
        if days is not None and (not _is_integer(days) or days < 1):
            raise self._wrong(
                "prune_keep_days", "is not a number of days", "write at least the days that a run reads"
            )
        if not _is_integer(self.retries) or not 0 <= self.retries <= _MOST_RETRIES:
            raise self._wrong(
                "retries", "is not a number of retries", f"write an integer from 0 to {_MOST_RETRIES}"
            )
        if not isinstance(self.pool, str) or not self.pool.strip():
            raise self._wrong("pool", "is not the name of a pool", "write the name of an Airflow pool")

    @property
    def variable(self) -> str:
        """The name of the Airflow Variable with the settings of the dataset."""
        return VARIABLE if self.name == DEFAULT else f"{VARIABLE}_{self.name}"

    def id_of(self, base: str) -> str:
        """Returns the id of a DAG or an asset of this dataset: `base`, or `base__name`."""
        return base if self.name == DEFAULT else f"{base}__{self.name}"

    def time_limit(self, job: str) -> timedelta:
        """Returns the maximum duration of a job.

        After this time, Airflow ends the job and retries the task.
        """
        otherwise = _HOURS_OF_JOBS.get(job, self.task_hours.get(DEFAULT, _HOURS))
        return timedelta(hours=self.task_hours.get(job, otherwise))

    def _check_name(self) -> None:
        name = self.name
        if not isinstance(name, str) or len(name) > _MOST_CHARACTERS or not _NAME.fullmatch(name):
            raise self._wrong(
                "name",
                "is not a name of a dataset",
                f"write at most {_MOST_CHARACTERS} lower-case letters, digits and single underscores",
            )

    def _check_cron(self, option: str, form: re.Pattern[str], rule: str) -> None:
        """Checks that a schedule has at most one run a day. A second run would process the same day again."""
        cron = getattr(self, option)
        if not isinstance(cron, str) or not form.match(cron) or len(cron.split()) != len("mhdmw"):
            raise self._wrong(option, "is not a schedule with at most one run a day", f"write {rule}")
        if not croniter.is_valid(cron):
            raise self._wrong(option, "is not a cron expression", f"write {rule}")

    def _check_hours(self, option: str, hours: Any) -> None:
        is_number = isinstance(hours, float) or _is_integer(hours)
        if not is_number or not 0 < hours <= _MOST_HOURS:
            raise self._wrong(
                option, "is not a number of hours", f"write hours above 0, at most {_MOST_HOURS}"
            )

    def _wrong(self, option: str, what: str, remedy: str) -> DatasetError:
        return DatasetError(
            f"the dataset {self.name!r} (Airflow Variable {self.variable!r}) has the option "
            f"{option}={getattr(self, option)!r}, which {what}\n"
            f"  what to do: correct {option} in the DAG file that creates this dataset: {remedy}"
        )


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


DEFAULT_DATASET = Dataset()
