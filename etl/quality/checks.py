"""The limits of the section `quality`: which figures of a data report are warnings, and which stop a job."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any, Literal

from conf.errors import DataError
from conf.types import Quality, SplitConfig
from etl.quality.report_types import ColumnReport, Comparison

Level = Literal["warn", "stop"]

# Keys of a published finding that differ from the names of its fields.
_KEYS = {"message": "said"}
_LEVELS: tuple[Level, ...] = ("stop", "warn")
_MAX_STOPS = 5  # that the error names
_MAX_CHARACTERS = 60  # of a value that a message shows


@dataclass(frozen=True)
class Finding:
    """A figure above a limit, which is the setting `quality.<check>_<level>`.

    Attributes:
        column: None for figures of the whole day.
    """

    level: Level
    check: str
    column: str | None
    value: float
    limit: float
    message: str

    def to_facts(self) -> dict[str, Any]:
        """The finding as JSON values."""
        return {_KEYS.get(name, name): value for name, value in asdict(self).items()}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Finding:
        """The finding whose `to_facts` these are."""
        return cls(**{field.name: facts[_KEYS.get(field.name, field.name)] for field in fields(cls)})


@dataclass(frozen=True)
class _Figure:
    check: str
    column: str | None
    value: float
    message: str


def check_limits(quality: Quality, split: SplitConfig, compared: Comparison) -> list[Finding]:
    """Every figure above its limit, at the higher of its two levels; stops first, then by check."""
    figures = [*_row_figures(split, compared), *_all_column_figures(quality, compared)]
    findings = []
    for figure in figures:
        for level in _LEVELS:
            limit = getattr(quality, f"{figure.check}_{level}")
            if limit is not None and figure.value > limit:
                findings.append(
                    Finding(level, figure.check, figure.column, figure.value, limit, figure.message)
                )
                break
    return sorted(
        findings, key=lambda finding: (finding.level, finding.check, -finding.value, finding.column or "")
    )


def require_no_stop(compared: Comparison, findings: list[Finding], report: str) -> None:
    """Stops the job if a finding has the level "stop".

    Args:
        report: path of the published data report, which the error names.

    Raises:
        DataError: names day, columns, values and limits, and the `--set` that accepts them.
    """
    stops = [finding for finding in findings if finding.level == "stop"]
    if not stops:
        return
    days = [piece.dt for piece in compared.train]
    messages = "; ".join(
        f"{stop.message}: {stop.check}={stop.value:.4g} is above quality.{stop.check}_stop={stop.limit:g}"
        for stop in stops[:_MAX_STOPS]
    )
    more = f"; and {len(stops) - _MAX_STOPS} more" if len(stops) > _MAX_STOPS else ""
    accepted: dict[str, float] = {}
    for stop in stops:
        accepted[stop.check] = max(accepted.get(stop.check, 0.0), stop.value)
    options = " ".join(
        f"--set quality.{check}_stop={_rounded_up(value)}" for check, value in sorted(accepted.items())
    )
    raise DataError(
        f"the log of {compared.day} is not like that of its train days {days[0]} to {days[-1]}: "
        f"{messages}{more}",
        f"look at {report} or at the page of the report job, and deliver the day again; if the change is "
        f"intended, accept it with {options} or name columns that always change in quality.exempt",
    )


def _row_figures(split: SplitConfig, compared: Comparison) -> Iterator[_Figure]:
    """Figures of rows and clicks of the day.

    Numbers of rows are compared where splits are days, click rates where clicks do not decide the split.
    """
    today, train = compared.today, compared.train
    usual = median(piece.rows for piece in train)
    if split.by == "day" and usual:
        message = f"{today.rows} rows, {usual:g} on the median train day"
        yield _Figure("row_shortfall", None, 1 - today.rows / usual, message)
        yield _Figure("row_excess", None, today.rows / usual - 1, message)
    rates = compared.click_rates
    if split.by != "leave_last_out" and rates is not None:
        message = f"{rates.today:.2%} of rows are clicks, {rates.train:.2%} in the train days"
        yield _Figure("click_rate_change", None, rates.change, message)


def _all_column_figures(quality: Quality, compared: Comparison) -> Iterator[_Figure]:
    for column in compared.columns:
        if column.name not in quality.exempt:
            yield from _column_figures(column)


def _column_figures(column: ColumnReport) -> Iterator[_Figure]:
    null_rate, train_null_rate = column.null_rate, column.train_null_rate
    if null_rate is not None and train_null_rate is not None:
        message = f"{column.name} is null in {null_rate:.2%} of rows, {train_null_rate:.2%} in the train days"
        yield _Figure("null_rate_change", column.name, abs(null_rate - train_null_rate), message)
    if column.new_value_rate is not None:
        most = f", most often {_quoted(column.new_top[0][0])}" if column.new_top else ""
        message = (
            f"{column.new_value_rate:.2%} of the values of {column.name} are not in the train days{most}"
        )
        yield _Figure("new_value_rate", column.name, column.new_value_rate, message)
    if column.psi_above_noise and column.moved is not None:
        label, train, day = column.moved
        message = (
            f"{column.name} drifted, most at {_quoted(label)} with {day:.2%} of rows, {train:.2%} in the "
            "train days"
        )
        yield _Figure("psi", column.name, column.psi_above_noise, message)


def _quoted(value: str) -> str:
    """A raw value as a message shows it: on one line, and shortened."""
    return repr(value if len(value) <= _MAX_CHARACTERS else value[:_MAX_CHARACTERS] + "…")


def _rounded_up(value: float) -> str:
    """The value with two digits, rounded up, so that it is not above this limit."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.ceil(value / step) * step:.6g}"
