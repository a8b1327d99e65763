"""Counts the rows of a day's log whose event_time is outside of this day, in `log.time_zone` (default: UTC).

A log may have some such rows: late events, or days of another time zone. If nearly all rows have such times,
the unit of the time is wrong, or the file of another day was delivered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conf.dates import days_since_epoch
from conf.types import Config, EventTime, RawTable
from etl.raw.row_rules import NANOSECONDS
from etl.raw.time_text import starts_of_days

# The fact of a quarantine manifest. Manifests of earlier releases lack it.
MISDATED = "misdated"


@dataclass(frozen=True)
class Misdated:
    """The rows of a day whose event_time is outside of the day.

    Attributes:
        rows: number of these rows.
        earliest, latest: the smallest and the largest event_time of these rows, in µs since 1970-01-01 UTC;
            None without such rows.
    """

    rows: int = 0
    earliest: int | None = None
    latest: int | None = None

    def __add__(self, other: Misdated) -> Misdated:
        """Returns the counts of the rows of both."""
        earliest = [time for time in (self.earliest, other.earliest) if time is not None]
        latest = [time for time in (self.latest, other.latest) if time is not None]
        return Misdated(self.rows + other.rows, min(earliest, default=None), max(latest, default=None))

    def to_facts(self) -> dict[str, Any]:
        """Returns the counts as JSON values."""
        return {"rows": self.rows, "earliest": self.earliest, "latest": self.latest}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Misdated | None:
        """Returns the counts in the facts of a quarantine manifest; None if they were not counted."""
        counted = facts.get(MISDATED)
        return None if counted is None else cls(**counted)


NO_ROWS = Misdated()


def bounds_of_day(config: Config, dt: str) -> tuple[int, int] | None:
    """Returns the first µs of a day in `log.time_zone`, and the first µs after the day, since 1970-01-01 UTC.

    A day on which clocks change has 23 or 25 hours. Returns None if the log is not stored by day, or has no
    event_time: then no time can be on a wrong day.
    """
    if not config.log.by_day or config.log.event_time is None:
        return None
    day = days_since_epoch(dt)
    first, end = starts_of_days(np.array([day, day + 1]), config.log.time_zone).tolist()
    return first, end


def count_misdated(times: NDArray[np.int64], bounds: tuple[int, int]) -> Misdated:
    """Counts the times outside of a day.

    Args:
        times: (n,) µs since 1970-01-01 UTC.
        bounds: the result of `bounds_of_day`.
    """
    outside = times[(times < bounds[0]) | (times >= bounds[1])]
    return Misdated(len(outside), int(outside.min()), int(outside.max())) if len(outside) else NO_ROWS


def describe(event_time: EventTime, time: int, log: RawTable) -> str:
    """Returns a text with a raw value, and the day as which it was read.

    Args:
        event_time: column and unit of the time.
        time: µs since 1970-01-01 UTC.
        log: the table with the column. A time that is no integer is shown in UTC.
    """
    if log.type_of(event_time.column) != "int":
        return f"{event_time.column}={np.datetime_as_string(np.datetime64(time, 'us'))}Z"
    value = time * 1000 // NANOSECONDS[event_time.unit]
    day = np.datetime_as_string(np.datetime64(time, "us"), unit="D")
    return f"{event_time.column}={value} was read as {day}"
