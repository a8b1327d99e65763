"""Reads the logical day of a run from the Param `run_date`, or else from the partition key.

The day does not depend on the clock, so a repeated run has the same day.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException

RUN_DATE = "run_date"
_MOST_DAYS = 1000

DATE_PARAM = Param(
    None,
    type=["null", "string"],
    format="date",
    title="Run date",
    description="The logical day, YYYY-MM-DD. A scheduled run takes the day before the run.",
)


def run_date_of(context: Mapping[str, Any], days_before_key: int = 0) -> str:
    """Returns the logical day of a run as an ISO date.

    The logical day of a scheduled run is the day before the run.

    Args:
        context: the context of an Airflow task.
        days_before_key: how many days the logical day is before the partition key.

    Raises:
        AirflowFailException: the run has neither the Param nor a partition key, or the value is not a date.
    """
    param = context["params"].get(RUN_DATE)
    if param:
        return _parsed(param, f"the Param {RUN_DATE}").isoformat()
    run = context["dag_run"]
    key = getattr(run, "partition_key", None)
    if not key:
        raise AirflowFailException(
            f"this run has neither a Param {RUN_DATE} nor a partition key\n"
            f'  what to do: trigger the DAG with {{"{RUN_DATE}": "YYYY-MM-DD"}}'
        )
    days = max(days_before_key, 1) if _has_key_of_its_own_day(run) else days_before_key
    return (_parsed(key, "the partition key") - timedelta(days=days)).isoformat()


def _has_key_of_its_own_day(run: Any) -> bool:
    """Returns whether the partition key of a scheduled run is the day of the run itself.

    With run_offset=-1, the key is the day of the previous scheduled time. If the clocks go forward at the
    scheduled time, Airflow moves the run to a time after the skipped hour. Counted from there, the previous
    scheduled time is that of the same day, so the key is the day of the run itself.
    """
    partition_date = getattr(run, "partition_date", None)
    return bool(
        partition_date is not None and run.run_type == "scheduled" and partition_date == run.run_after
    )


def days_between(first: str, last: str) -> list[str]:
    """Returns all days from `first` to `last`, both included.

    Raises:
        AirflowFailException: a value is not a date, the last day is before the first, or there are more than
            1000 days.
    """
    start, end = _parsed(first, "the Param from"), _parsed(last, "the Param to")
    count = (end - start).days + 1
    if not 0 < count <= _MOST_DAYS:
        raise AirflowFailException(
            f"between the Params from={first} and to={last} there are {count} days, both days included, but "
            f"1 to {_MOST_DAYS} days are allowed\n"
            f"  what to do: choose for `to` the day of `from`, or a day at most {_MOST_DAYS - 1} days later"
        )
    return [(start + timedelta(days=days)).isoformat() for days in range(count)]


def _parsed(text: str, origin: str) -> date:
    try:
        parsed = date.fromisoformat(text)
    except (TypeError, ValueError) as error:
        raise AirflowFailException(
            f"{origin} {text!r} is not a date: {error}\n  what to do: write it as YYYY-MM-DD"
        ) from error
    if parsed.isoformat() != text:
        raise AirflowFailException(
            f"{origin} {text!r} is not of the form YYYY-MM-DD\n  what to do: write {parsed.isoformat()}"
        )
    return parsed
