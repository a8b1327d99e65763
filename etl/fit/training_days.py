"""The days that a fit measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from etl.value_counts.requests import Counts


@dataclass(frozen=True)
class TrainingDays:
    """The training days whose statistics a fit needs: all of them, or those that the parent has not counted.

    Attributes:
        rows: returns the prepared training rows of these days.
        value_counts: of these days; None where values are not counted.
        days: ISO dates in order.
        latest: the last day that the workflow counts, in days since 1970-01-01.
    """

    rows: Callable[[], DataFrame]
    value_counts: Counts | None
    days: Sequence[str]
    latest: int
