"""What a fit reads: the prepared training rows and value counts of its days."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from etl.value_counts.requests import Counts


@dataclass(frozen=True)
class TrainingDays:
    """The training days whose statistics a fit needs: all days, or the days that the parent has not counted.

    Attributes:
        rows: returns the prepared training rows of these days.
        value_counts: the value counts of these days; None if there are no value counts.
        days: ISO dates, in ascending order.
        latest: the last day whose values the workflow has counted, in days since 1970-01-01.
    """

    rows: Callable[[], DataFrame]
    value_counts: Counts | None
    days: Sequence[str]
    latest: int
