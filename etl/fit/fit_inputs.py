"""The inputs of a fit: the prepared training rows and the value counts of the training days."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from etl.value_counts.requests import Counts


@dataclass(frozen=True)
class TrainingDays:
    """The training days that a fit reads.

    If a new workflow is fitted, these are all training days. If a workflow is extended, these are only the
    days that the workflow's vocabularies do not include yet.

    Attributes:
        rows: returns the prepared training rows of these days.
        value_counts: the value counts of these days; None if there are no value counts.
        days: ISO dates, in ascending order.
        latest: the last day that the fitted workflow includes, in days since 1970-01-01. If a workflow is
            extended, this day may be later than the days in `days`.
    """

    rows: Callable[[], DataFrame]
    value_counts: Counts | None
    days: Sequence[str]
    latest: int
