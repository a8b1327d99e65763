"""Compares the figures of a data report with the limits in the configuration section `quality`.

A figure has up to two limits: above `quality.<name>_warn` it causes a warning, and above
`quality.<name>_stop` it stops the job.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any, Literal

from conf.counted import counted
from conf.errors import DataError
from conf.types import Quality, SplitConfig
from etl.quality.report_rates import ColumnReport, Comparison

Level = Literal["warn", "stop"]

# Keys of a published finding that differ from the names of its fields.
_KEYS = {"message": "said"}
_LEVELS: tuple[Level, ...] = ("stop", "warn")
_MAX_STOPS = 5  # maximum number of findings in the error message
_MAX_CHARACTERS = 60  # maximum length of a raw value in a message


@dataclass(frozen=True)
class Finding:
    """A figure of the data report that is above one of its limits.

    Attributes:
        level: "warn" or "stop".
        check: name of the figure, such as `psi`. The limit is the setting `quality.<check>_<level>`.
        column: the raw column; None if the figure is about the whole day.
        value, limit: the figure and its limit.
    """

    level: Level
    check: str
    column: str | None
    value: float
    limit: float
    message: str

    def to_facts(self) -> dict[str, Any]:
        """Returns the finding as a mapping of JSON values."""
        return {_KEYS.get(name, name): value for name, value in asdict(self).items()}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Finding:
        """Converts the result of `to_facts` back to a finding."""
        return cls(**{field.name: facts[_KEYS.get(field.name, field.name)] for field in fields(cls)})


@dataclass(frozen=True)
class Figure:
    """A figure that has the limits `quality.<check>_warn` and `quality.<check>_stop`."""

    check: str
    column: str | None
    value: float
    message: str


def check_limits(
    quality: Quality,
    split: SplitConfig,
    compared: Comparison,
    draws: bool = False,
    drawn_columns: Collection[str] = (),
) -> list[Finding]:
    """Returns a finding for each figure above a limit, sorted by level ("stop" first) and check.

    A figure above both of its limits has the level "stop".

    Args:
        quality, split: the sections of the configuration.
        compared: the figures.
        draws: whether the section `negatives` adds rows.
        drawn_columns: columns that these rows change (Config.drawn_columns). Their figures have no limit.
    """
    exempt = {*quality.exempt, *drawn_columns}
    figures = [*_row_figures(split, compared, draws), *_all_column_figures(exempt, compared)]
    return above_limits(quality, figures)


def above_limits(quality: Quality, figures: Iterable[Figure]) -> list[Finding]:
    """Returns a finding for each figure above a limit; see `check_limits`."""
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
        report: path of the published data report. The error message contains it.

    Raises:
        DataError: a finding has the level "stop". The message contains the day, columns, values, limits, and
            the `--set` options that raise the limits above these values.
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
    raise DataError(
        f"the log of {compared.day} differs too much from its train days {days[0]} to {days[-1]}: "
        f"{messages}{more}",
        f"look at the data report in {report} or on the page of the job report, correct the log of "
        f"{compared.day} and deliver it again; if the change is intended, run the job with "
        f"{options_to_accept(stops)} or add columns that always change to quality.exempt",
    )


def options_to_accept(stops: Iterable[Finding]) -> str:
    """Returns the `--set` options that raise the limits above the values of the findings."""
    accepted: dict[str, float] = {}
    for stop in stops:
        accepted[stop.check] = max(accepted.get(stop.check, 0.0), stop.value)
    return " ".join(
        f"--set quality.{check}_stop={_rounded_up(value)}" for check, value in sorted(accepted.items())
    )


def unchecked(
    split: SplitConfig, compared: Comparison, draws: bool, drawn_columns: Collection[str] = ()
) -> list[str]:
    """Returns, as texts, the figures that have no limit for this log, each with the reason.

    The arguments are those of `check_limits`.
    """
    texts = []
    if split.by != "day":
        texts.append("the number of rows, because the log is one partition")
    if why := _why_no_click_rate(split, compared, draws):
        texts.append(f"the click rate, because {why}")
    if names := [column.name for column in compared.columns if column.name in drawn_columns]:
        texts.append(
            f"{', '.join(names)}, because only the test rows have drawn items (negatives.train: false)"
        )
    return texts


def _why_no_click_rate(split: SplitConfig, compared: Comparison, draws: bool) -> str | None:
    """Returns why click rates are not compared; None if they are compared."""
    if compared.only_clicks:
        return "every row is a click"
    if draws:
        return "the section negatives sets how many rows are no clicks"
    if split.by == "leave_last_out":
        return "split.by=leave_last_out chooses the test rows by their clicks"
    return None if compared.click_rates else "the day has no rows, or the train days have no clicks"


def _row_figures(split: SplitConfig, compared: Comparison, draws: bool) -> Iterator[Figure]:
    """Yields the figures about the number of rows and the click rate of the day.

    Numbers of rows are compared only if the log is split by days. Click rates are compared only if neither
    the split nor drawn rows decide them.
    """
    today, train = compared.today, compared.train
    usual = median(piece.rows for piece in train)
    if split.by == "day" and usual:
        message = f"the day has {counted(today.rows, 'row')}, but the median train day has {usual:g}"
        yield Figure("row_shortfall", None, 1 - today.rows / usual, message)
        yield Figure("row_excess", None, today.rows / usual - 1, message)
    rates = compared.click_rates
    if rates is not None and _why_no_click_rate(split, compared, draws) is None:
        message = f"{rates.today:.2%} of rows are clicks, but {rates.train:.2%} on the train days"
        yield Figure("click_rate_change", None, rates.change, message)


def _all_column_figures(exempt: Collection[str], compared: Comparison) -> Iterator[Figure]:
    for column in compared.columns:
        if column.name not in exempt:
            yield from _column_figures(column)


def _column_figures(column: ColumnReport) -> Iterator[Figure]:
    null_rate, train_null_rate = column.null_rate, column.train_null_rate
    if null_rate is not None and train_null_rate is not None:
        message = f"{column.name} is null in {null_rate:.2%} of rows, {train_null_rate:.2%} on the train days"
        yield Figure("null_rate_change", column.name, abs(null_rate - train_null_rate), message)
    if column.new_value_rate is not None:
        most = f", most often {_quoted(column.new_top[0][0])}" if column.new_top else ""
        message = (
            f"{column.new_value_rate:.2%} of the values of {column.name} do not occur on the train days{most}"
        )
        yield Figure("new_value_rate", column.name, column.new_value_rate, message)
    if column.psi_above_noise and column.moved is not None:
        label, train, day = column.moved
        message = (
            f"{column.name} drifted; the largest change is {_quoted(label)}, with {day:.2%} of rows, but "
            f"{train:.2%} on the train days"
        )
        yield Figure("psi", column.name, column.psi_above_noise, message)


def _quoted(value: str) -> str:
    """Returns a raw value for a message: in quotes, on one line, and shortened."""
    return repr(value if len(value) <= _MAX_CHARACTERS else value[:_MAX_CHARACTERS] + "…")


def _rounded_up(value: float) -> str:
    """Rounds a value up to two significant digits. With the result as limit, the value is accepted."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.ceil(value / step) * step:.6g}"
