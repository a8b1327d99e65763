"""The limits of the section `quality`: which figures of a data report are worth a warning, and which stop the job."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Literal

from conf.errors import DataError
from conf.types import Quality, SplitConfig
from etl.quality.report_types import ColumnReport, Comparison, PieceRows

Level = Literal["warn", "stop"]

_LEVELS: tuple[Level, ...] = ("stop", "warn")
_NAMED = 5
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class Finding:
    """A figure above a limit. `check` and `level` name the key: `quality.<check>_<level>`; without `column`, of the day."""

    level: Level
    check: str
    column: str | None
    value: float
    limit: float
    said: str


@dataclass(frozen=True)
class _Figure:
    check: str
    column: str | None
    value: float
    said: str


def find(quality: Quality, split: SplitConfig, compared: Comparison) -> list[Finding]:
    """Every figure above its limit, at the higher of its two levels; stops first, then by check and column."""
    figures = [*_of_rows(split, compared), *_of_columns(quality, compared)]
    found = []
    for figure in figures:
        for level in _LEVELS:
            limit = getattr(quality, f"{figure.check}_{level}")
            if limit is not None and figure.value > limit:
                found.append(Finding(level, figure.check, figure.column, figure.value, limit, figure.said))
                break
    return sorted(found, key=lambda each: (each.level, each.check, -each.value, each.column or ""))


def enforce(compared: Comparison, findings: list[Finding], report: str) -> None:
    """Ends the job where a finding says so.

    Args:
        report: path of the published data report, for the reader of the error.

    Raises:
        DataError: names day, columns, values and limits, and the `--set` that would accept them.
    """
    stops = [each for each in findings if each.level == "stop"]
    if not stops:
        return
    days = [piece.dt for piece in compared.train]
    told = "; ".join(
        f"{each.said}: {each.check}={each.value:.4g} is above quality.{each.check}_stop={each.limit:g}"
        for each in stops[:_NAMED]
    )
    more = f"; and {len(stops) - _NAMED} more" if len(stops) > _NAMED else ""
    accepted: dict[str, float] = {}
    for each in stops:
        accepted[each.check] = max(accepted.get(each.check, 0.0), each.value)
    options = " ".join(
        f"--set quality.{check}_stop={_rounded_up(value)}" for check, value in sorted(accepted.items())
    )
    raise DataError(
        f"the log of {compared.day} is not like that of its train days {days[0]} to {days[-1]}: {told}{more}",
        f"look at {report} or the report job's page and deliver the day again; if the change is meant, accept it with "
        f"{options} or name columns that always change in quality.exempt",
    )


def _of_rows(split: SplitConfig, compared: Comparison) -> Iterator[_Figure]:
    """Rows and clicks of the day; sizes only where splits are days, clicks only where splits are not made by them."""
    today, train = compared.today, compared.train
    usual = median(piece.rows for piece in train)
    if split.by == "day" and usual:
        said = f"{today.rows} rows, {usual:g} on the median train day"
        yield _Figure("row_shortfall", None, 1 - today.rows / usual, said)
        yield _Figure("row_excess", None, today.rows / usual - 1, said)
    rate, before = _click_rate([today]), _click_rate(train)
    if split.by != "leave_last_out" and rate is not None and before:
        said = f"{rate:.2%} of rows are clicks, {before:.2%} in the train days"
        yield _Figure("click_rate_change", None, abs(rate / before - 1), said)


def _click_rate(pieces: list[PieceRows]) -> float | None:
    rows = sum(piece.rows for piece in pieces)
    return sum(piece.clicks for piece in pieces) / rows if rows else None


def _of_columns(quality: Quality, compared: Comparison) -> Iterator[_Figure]:
    for column in compared.columns:
        if column.name not in quality.exempt:
            yield from _of_column(column)


def _of_column(column: ColumnReport) -> Iterator[_Figure]:
    null, before = column.null_rate, column.train_null_rate
    if null is not None and before is not None:
        said = f"{column.name} is null in {null:.2%} of rows, {before:.2%} in the train days"
        yield _Figure("null_rate_change", column.name, abs(null - before), said)
    if column.new_value_rate is not None:
        most = f", most often {_quoted(column.new_top[0][0])}" if column.new_top else ""
        said = f"{column.new_value_rate:.2%} of the values of {column.name} are not in the train days{most}"
        yield _Figure("new_value_rate", column.name, column.new_value_rate, said)
    # A PSI that chance may give says nothing, whatever the limit: a day of ten rows has a large one.
    if column.psi is not None and column.psi > (column.psi_noise or 0.0) and column.moved is not None:
        label, train, day = column.moved
        said = f"{column.name} drifted, most at {_quoted(label)} with {day:.2%} of rows, {train:.2%} in the train days"
        yield _Figure("psi", column.name, column.psi, said)


def _quoted(value: str) -> str:
    """A raw value inside a message, on one line and not for ever."""
    return repr(value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "…")


def _rounded_up(value: float) -> str:
    """The value with two digits, rounded up: a limit that it does not exceed."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.ceil(value / step) * step:.6g}"
