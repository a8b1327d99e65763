"""Compares the figures of a data report with the limits in the configuration section `quality`.

A figure has up to two limits: above `quality.<name>_warn` it causes a warning, and above
`quality.<name>_stop` it stops the job.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any, Literal

from conf.errors import DataError
from conf.messages import counted
from conf.types import Quality, Split, SplitConfig
from metrics.psi import above_noise

Level = Literal["warn", "stop"]

# Maps fields of a finding to their keys in the published JSON. The key of any other field is its name.
_KEYS = {"message": "said"}
_LEVELS: tuple[Level, ...] = ("stop", "warn")
_MAX_STOPS = 5  # Maximum number of findings in the error message.
_MAX_CHARACTERS = 60  # Maximum length of a raw value in a message.


@dataclass(frozen=True)
class Finding:
    """A figure of the data report that is above one of its limits.

    Attributes:
        level: "warn" or "stop".
        check: name of the figure, such as `psi`. The limit is the setting `quality.<check>_<level>`.
        column: the raw column; None if the figure is not about one column, such as `row_excess`.
        value, limit: value of the figure, and the limit that it exceeds.
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
class LimitedFigure:
    """A figure that has the limits `quality.<check>_warn` and `quality.<check>_stop`."""

    check: str
    column: str | None
    value: float
    message: str


def check_limits(
    quality: Quality,
    split: SplitConfig,
    compared: DayComparison,
    draws: bool = False,
    drawn_columns: Collection[str] = (),
) -> list[Finding]:
    """Returns a finding for each figure above a limit, sorted by level ("stop" first) and check.

    A figure above both of its limits has the level "stop".

    Args:
        quality, split: the sections `quality` and `split` of the configuration.
        compared: the figures of the day and of its train days.
        draws: whether the section `negatives` adds rows.
        drawn_columns: columns whose figures depend on the drawn rows (Config.drawn_columns). These figures
            are not checked.
    """
    exempt = {*quality.exempt, *drawn_columns}
    figures = [*_row_figures(split, compared, draws), *_all_column_figures(exempt, compared)]
    return above_limits(quality, figures)


def above_limits(quality: Quality, figures: Iterable[LimitedFigure]) -> list[Finding]:
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


def require_no_stop(compared: DayComparison, findings: list[Finding], report: str) -> None:
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
    split: SplitConfig, compared: DayComparison, draws: bool, drawn_columns: Collection[str] = ()
) -> list[str]:
    """Returns a phrase for each figure that is not compared with a limit: its name and the reason.

    The arguments have the same meaning as in `check_limits`.
    """
    texts = []
    if split.by != "day":
        texts.append("the number of rows, because the log is not divided into days")
    if why := _why_no_click_rate(split, compared, draws):
        texts.append(f"the click rate, because {why}")
    if names := [column.name for column in compared.columns if column.name in drawn_columns]:
        texts.append(
            f"{', '.join(names)}, because only the test rows have drawn items (negatives.train: false)"
        )
    return texts


def _why_no_click_rate(split: SplitConfig, compared: DayComparison, draws: bool) -> str | None:
    """Returns why click rates are not compared with a limit; None if they are compared."""
    if compared.only_clicks:
        return "every row is a click"
    if draws:
        return "the section negatives sets how many rows are not clicks"
    if split.by == "leave_last_out":
        return "split.by=leave_last_out chooses the test rows by their clicks"
    return None if compared.click_rates else "the day has no rows, or the train days have no clicks"


def _row_figures(split: SplitConfig, compared: DayComparison, draws: bool) -> Iterator[LimitedFigure]:
    """Yields the figures about the number of rows and the click rate of the day.

    Numbers of rows are compared only if the log is split by days. Click rates are compared only if neither
    `split.by` nor drawn rows affect them.
    """
    today, train = compared.today, compared.train
    usual = median(piece.rows for piece in train)
    if split.by == "day" and usual:
        message = f"the day has {counted(today.rows, 'row')}, but the median train day has {usual:g}"
        yield LimitedFigure("row_shortfall", None, 1 - today.rows / usual, message)
        yield LimitedFigure("row_excess", None, today.rows / usual - 1, message)
    rates = compared.click_rates
    if rates is not None and _why_no_click_rate(split, compared, draws) is None:
        message = f"{rates.today:.2%} of rows are clicks, but {rates.train:.2%} on the train days"
        yield LimitedFigure("click_rate_change", None, rates.change, message)


def _all_column_figures(exempt: Collection[str], compared: DayComparison) -> Iterator[LimitedFigure]:
    for column in compared.columns:
        if column.name not in exempt:
            yield from _column_figures(column)


def _column_figures(column: ColumnReport) -> Iterator[LimitedFigure]:
    null_rate, train_null_rate = column.null_rate, column.train_null_rate
    if null_rate is not None and train_null_rate is not None:
        message = (
            f"{column.name} is null in {null_rate:.2%} of rows, but in {train_null_rate:.2%} of rows on the "
            "train days"
        )
        yield LimitedFigure("null_rate_change", column.name, abs(null_rate - train_null_rate), message)
    if column.new_value_rate is not None:
        most = f", most often {_quoted(column.new_top[0][0])}" if column.new_top else ""
        message = (
            f"{column.new_value_rate:.2%} of the values of {column.name} do not occur on the train days{most}"
        )
        yield LimitedFigure("new_value_rate", column.name, column.new_value_rate, message)
    if column.psi_above_noise and column.moved is not None:
        label, train, day = column.moved
        message = (
            f"{column.name} drifted; the share of {_quoted(label)} changed most, to {day:.2%} of rows from "
            f"{train:.2%} on the train days"
        )
        yield LimitedFigure("psi", column.name, column.psi_above_noise, message)


def _quoted(value: str) -> str:
    """Returns a raw value for a message: in quotes, on one line, and shortened."""
    return repr(value if len(value) <= _MAX_CHARACTERS else value[:_MAX_CHARACTERS] + "…")


def _rounded_up(value: float) -> str:
    """Rounds a value up to two significant digits, so that a limit equal to the result accepts the value."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.ceil(value / step) * step:.6g}"


# The classes below are the types of the data report of a run date. They are converted to the JSON that is
# published, and back.

Number = int | float


@dataclass(frozen=True)
class PieceRows:
    """The number of valid rows of one day in one split, and the number of clicks among these rows."""

    dt: str
    split: Split
    rows: int
    clicks: int


@dataclass(frozen=True)
class ClickRates:
    """The share of rows that are clicks, on the compared day and on the train days."""

    today: float
    train: float

    @property
    def change(self) -> float:
        """Returns the absolute value of the relative change from the train days to the compared day."""
        return abs(self.today / self.train - 1)


@dataclass(frozen=True)
class ColumnReport:
    """Figures of one raw feature column on the compared day and on the train days.

    A cell is the content of the column in one row. Attributes whose names begin with `train_` are about the
    train days.

    Attributes:
        kind: `string` for columns of categorical features, `int` or `float` for columns of dense features.
        nulls, cells: number of cells that are null, and number of cells that are not null.
        distinct, train_distinct: number of distinct values; `train_distinct` is None for a numeric column.
        new_cells: number of the day's cells whose value does not occur on any train day; None for a numeric
            column.
        psi, psi_noise: the population stability index (PSI) between the train days and the day, and the PSI
            that chance alone may cause (metrics.psi). Both are None if the day or the train days have no row.
        moved: the histogram bin that contributes most to the PSI, as (name of the bin, its share of the rows
            on the train days, its share of the rows on the day). None if there is no PSI.
        top: the most frequent values of the day, as (value, number of cells on the day, number of cells on
            the train days). The last number is None if it was not computed.
        new_top: the most frequent values that do not occur on any train day, as (value, number of cells on
            the day).
        low, high, mean: minimum, maximum and mean of the day's numbers; None for a text column.
    """

    name: str
    kind: str
    nulls: int
    cells: int
    train_nulls: int
    train_cells: int
    distinct: int
    train_distinct: int | None
    new_cells: int | None
    psi: float | None
    psi_noise: float | None
    moved: tuple[str, float, float] | None
    top: tuple[tuple[str | Number, int, int | None], ...]
    new_top: tuple[tuple[str, int], ...]
    low: Number | None
    high: Number | None
    mean: float | None

    @property
    def null_rate(self) -> float | None:
        """Returns the share of null cells on the day."""
        return share(self.nulls, self.nulls + self.cells)

    @property
    def train_null_rate(self) -> float | None:
        """Returns the share of null cells on the train days."""
        return share(self.train_nulls, self.train_nulls + self.train_cells)

    @property
    def new_value_rate(self) -> float | None:
        """Returns the share of new cells among the day's cells that are not null.

        A cell is new if its value does not occur on any train day.
        """
        return None if self.new_cells is None else share(self.new_cells, self.cells)

    @property
    def psi_above_noise(self) -> float | None:
        """Returns the PSI, or 0 if chance alone may cause such a PSI; None if there is no PSI."""
        return None if self.psi is None else above_noise(self.psi, self.psi_noise or 0.0)


@dataclass(frozen=True)
class DayComparison:
    """The comparison of a day with the train days.

    If one partition of the log is divided into splits, its test split is compared with its train split.

    Attributes:
        day: the compared day, an ISO date.
        cut: True if one partition of the log is divided into splits.
        pieces: the number of rows and the number of clicks of each day and split.
        columns: the comparison of each raw feature column.
    """

    day: str
    cut: bool
    pieces: tuple[PieceRows, ...]
    columns: tuple[ColumnReport, ...]

    @property
    def train(self) -> list[PieceRows]:
        """Returns the number of rows and the number of clicks of each train day."""
        return [piece for piece in self.pieces if piece.split == "train"]

    @property
    def today(self) -> PieceRows:
        """Returns the number of rows and the number of clicks of the compared day."""
        return next(piece for piece in self.pieces if piece.dt == self.day and piece.split == "test")

    @property
    def only_clicks(self) -> bool:
        """Returns whether every row of the log is a click.

        This is the case if the log contains only items that users chose.
        """
        return any(piece.rows for piece in self.pieces) and all(p.clicks == p.rows for p in self.pieces)

    @property
    def click_rates(self) -> ClickRates | None:
        """Returns the click rates of the day and of the train days.

        The result is None if the day has no row, if no train day has a click, or if all rows are clicks.
        """
        if self.only_clicks:
            return None
        today = share(self.today.clicks, self.today.rows)
        train = share(sum(day.clicks for day in self.train), sum(day.rows for day in self.train))
        return None if today is None or not train else ClickRates(today, train)

    def to_facts(self) -> dict[str, Any]:
        """Returns the comparison as JSON values.

        Rates such as `null_rate` are included, so that other programs need not compute them.
        """
        rates = ("null_rate", "train_null_rate", "new_value_rate")
        return {
            "day": self.day,
            "cut": self.cut,
            "pieces": [asdict(piece) for piece in self.pieces],
            "columns": [{**asdict(c), **{rate: getattr(c, rate) for rate in rates}} for c in self.columns],
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> DayComparison:
        """Converts the result of `to_facts` back to a comparison."""
        return cls(
            facts["day"],
            facts["cut"],
            tuple(PieceRows(**piece) for piece in facts["pieces"]),
            tuple(_column(column) for column in facts["columns"]),
        )


def share(part: int, whole: int) -> float | None:
    """Returns part / whole; None if `whole` is 0."""
    return part / whole if whole else None


def _column(values: Mapping[str, Any]) -> ColumnReport:
    known = {field.name: values[field.name] for field in fields(ColumnReport)}
    return ColumnReport(
        **{
            **known,
            "moved": None if known["moved"] is None else tuple(known["moved"]),
            "top": _tuples(known["top"]),
            "new_top": _tuples(known["new_top"]),
        }
    )


def _tuples(lists: Sequence[Sequence[Any]]) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(values) for values in lists)


# The code below counts users and items that have no row in their table of attributes, and checks limits.

log = logging.getLogger("nightrank.etl")
Section = Literal["users", "items"]

# The manifests of the tables `users` and `items` store the numbers of a `MissingRows` under this key.
FACT = "of_log"


@dataclass(frozen=True)
class MissingRows:
    """The number of users (or items) in the log of a run that have no row in the table of users (or items).

    Attributes:
        section: the section of the table: `users` or `items`.
        in_log: number of distinct users or items in the log, on all days of the run.
        without_row: number of these users or items that have no row in the table.
    """

    section: Section
    in_log: int
    without_row: int

    @property
    def check(self) -> str:
        """Returns the name of the figure, such as `users_without_row`."""
        return f"{self.section}_without_row"

    @property
    def share(self) -> float | None:
        """Returns the share of users or items without a row in their table; None if the log has none."""
        return share(self.without_row, self.in_log)

    def to_facts(self) -> dict[str, Any]:
        """Returns the numbers as a mapping that a manifest stores in its field `facts`."""
        return {FACT: asdict(self)}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> MissingRows | None:
        """Returns the numbers in the facts of a manifest; None if the facts do not contain them."""
        return cls(**facts[FACT]) if FACT in facts else None


def check_missing_rows(quality: Quality, missing: Sequence[MissingRows]) -> list[Finding]:
    """Returns findings for the shares of users and items that lack a row in their table, if above a limit."""
    figures = [
        LimitedFigure(
            rows.check,
            None,
            rows.share,
            f"{rows.without_row} of {rows.in_log} {rows.section} of the log have no row in the table "
            f"`{rows.section}`",
        )
        for rows in missing
        if rows.share is not None
    ]
    return above_limits(quality, figures)


def require_rows(quality: Quality, missing: Sequence[MissingRows], paths: Mapping[str, str]) -> None:
    """Stops the job if the share of users or of items without a row is above its limit.

    Args:
        quality: the section `quality`, with the limits.
        missing: the numbers of users and of items that have no row in their table.
        paths: maps each section to the path of its table, for the error message.

    Raises:
        DataError: a share is above its limit `quality.<section>_without_row_stop`.
    """
    stops = [finding for finding in check_missing_rows(quality, missing) if finding.level == "stop"]
    if not stops:
        return
    sections = [finding.check.removesuffix("_without_row") for finding in stops]
    files = " and ".join(paths[section] for section in sections)
    messages = "; ".join(
        f"{stop.message}: {stop.check}={stop.value:.4g} is above quality.{stop.check}_stop={stop.limit:g}"
        for stop in stops
    )
    raise DataError(
        f"{files}: {messages}",
        f"deliver the missing rows in {files} and run the job again; if the rows are missing on purpose, run "
        f"the job with {options_to_accept(stops)}",
    )


def log_missing_rows(quality: Quality, missing: Sequence[MissingRows]) -> list[Finding]:
    """Logs and returns the findings of `check_missing_rows` about users and items without a row."""
    findings = check_missing_rows(quality, missing)
    for finding in findings:
        log.warning(
            "data quality, %s (%s=%.4g): %s", finding.level, finding.check, finding.value, finding.message
        )
    return findings
