"""The section about the data of a run: rows by day, dropped rows, click rates, splits, and missing keys."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from conf.messages import counted
from conf.types import SPLITS
from etl.quality.checks import ColumnReport, DayComparison, Finding, PieceRows, share
from reporting.elements import numbers
from reporting.elements.charts import columns, legend
from reporting.elements.markup import (
    Child,
    Html,
    Section,
    figure,
    grid,
    join,
    lead,
    missing,
    section,
    table,
    tag,
)
from reporting.facts.run_facts import DataQuality, Day, RunFacts

_REASONS = 7


def render(run: RunFacts) -> Section:
    """Returns the section: charts and tables of the days that the run used."""
    if not run.days:
        return section("data", "Data", missing("The days and splits", "build_features"))
    days = list(run.days)
    order: list[str] = list(SPLITS)
    cut = len(_once(days)) < len(days)
    names, by = ([day.split for day in days], "split") if cut else ([day.dt[5:] for day in days], "day")
    groups = [order.index(day.split) for day in days]
    keys = None if cut else legend([split for split in order if any(day.split == split for day in days)])
    rows = columns("Rows", names, [day.rows for day in days], groups=groups, x_label=by, y_label="rows")
    charts = [figure(join([keys, rows]), "Rows", f"after dropping, by {by}.")]
    if run.of_choices:
        counts = [float(day.clicks or 0) for day in days]
        drawn = columns("Choices", names, counts, groups=groups, x_label=by, y_label="choices")
        charts.append(
            figure(join([keys, drawn]), "Choices", f"rows with an item that a user chose, by {by}.")
        )
    elif all(day.click_rate is not None for day in days):
        rates = [100 * (day.click_rate or 0.0) for day in days]
        drawn = columns("Click rate", names, rates, groups=groups, x_label=by, y_label="click rate, %")
        charts.append(figure(join([keys, drawn]), "Click rate", f"share of rows with a click, by {by}."))
    return section(
        "data",
        "Data",
        _data_lead(run, days),
        grid(*charts),
        _by_day(days, run.of_choices),  # not in the grid: half of the grid is too narrow for seven columns
        grid(_by_reason(days), _without_row(run)),
    )


def _data_lead(run: RunFacts, days: list[Day]) -> Html:
    """Returns the introductory text: the numbers of rows, and whether the workflow was fitted or reused."""
    once = _once(days)
    rows_in = sum(day.rows_in for day in once)
    dropped = sum(sum(day.dropped.values()) for day in once)
    share = numbers.percent(dropped / rows_in if rows_in else None, 2)
    workflow = {"fit": "fitted anew", "extend": "extended", "apply": "applied as it was"}.get(
        run.mode or "", run.mode
    )
    drawn = ""
    if run.per_positive:
        drawn = (
            " Rows without a choice include rows with randomly drawn items, at most "
            f"{numbers.count(run.per_positive)} for each choice (negatives.per_positive)."
        )
    return lead(
        f"{counted(sum(day.rows for day in days), 'row')} of {counted(len(once), 'day')}; "
        f"{numbers.count(dropped)} of {counted(rows_in, 'raw row')} ({share}) "
        f"{'was' if dropped == 1 else 'were'} dropped: rejected and in quarantine, or left out. "
        f"The workflow was {workflow}.{drawn}"
    )


def _once(days: list[Day]) -> list[Day]:
    """Returns one entry per day. In `days`, a day has several entries if its rows are in several splits."""
    return list({day.dt: day for day in days}.values())


def _by_day(days: list[Day], of_choices: bool) -> Html:
    """Returns a table with one row per day and split.

    If each row of the log is an item that a user chose, a column has the number of such rows.
    If the event_time of some rows is on another day, a column has the number of these rows.
    """
    with_misdated = any(day.misdated for day in days)
    rows: list[list[Child]] = [
        [
            day.dt,
            day.split,
            numbers.count(day.rows_in),
            numbers.count(sum(day.dropped.values())),
            numbers.count(day.rows),
            numbers.count(day.clicks) if of_choices else numbers.percent(day.click_rate, 2),
            *([numbers.count(day.misdated)] if with_misdated else []),
        ]
        for day in days
    ]
    headers = ["Day", "Split", "Rows in", "Dropped", "Rows out", "Choices" if of_choices else "Click rate"]
    headers += ["Times of other days"] if with_misdated else []
    return table(headers, rows, "Rows by day", text=(0, 1))


def _by_reason(days: list[Day]) -> Html | None:
    """Returns a table of the dropped rows by reason; None if no rows were dropped."""
    dropped: Counter[str] = Counter()
    for day in _once(days):
        dropped.update(day.dropped)
    ordered = sorted((item for item in dropped.items() if item[1]), key=lambda item: (-item[1], item[0]))
    if not ordered:
        return None
    rows: list[list[Child]] = [
        [tag("code", reason), numbers.count(count)] for reason, count in ordered[:_REASONS]
    ]
    rest = sum(count for _, count in ordered[_REASONS:])
    if rest:
        rows.append([counted(len(ordered) - _REASONS, "other reason"), numbers.count(rest)])
    return table(["Reason", "Rows"], rows, "Dropped by reason")


def _without_row(run: RunFacts) -> Html | None:
    """Returns a table with the numbers of users and items that have no row in their table of attributes.

    Returns None if no table of attributes is configured.
    """
    rows: list[list[Child]] = [
        [
            tag("code", missing_rows.section),
            numbers.count(missing_rows.in_log),
            numbers.count(missing_rows.without_row),
            numbers.percent(missing_rows.share, 2),
        ]
        for missing_rows in run.missing
    ]
    headers = ["Table", "In the log", "Without a row", "Share"]
    return table(headers, rows, "Users and items of the log without a row in their table") if rows else None


# The section about data quality compares every raw column of the day with the train days.

_TOP = 3
_SHOWN_CHARACTERS = 40
_NOTE = (
    "New values: share of the day's values that do not occur on the train days. PSI, the population "
    "stability index: below 0.1 stable, above 0.25 shifted. By chance: the PSI that a day of this size may "
    "have without any change."
)
Levels = Mapping[tuple[str | None, str], str]


def render_quality(
    report: DataQuality | None, of_choices: bool = False, *, with_charts: bool = True
) -> Section:
    """Returns the section: the figures above a limit, a table of all columns, their most frequent values.

    Args:
        report: the data report of the run.
        of_choices: whether each row of the log is an item that a user chose.
        with_charts: whether charts show the rows and clicks by day. False if another section of the page
            has them.
    """
    if report is None:
        return section("quality", "Data quality", missing("The data report", "build_features"))
    compared, findings = report.compared, report.findings
    levels = {(finding.column, finding.check): finding.level for finding in findings}
    flagged = {column for column, _ in levels}
    ordered = sorted(compared.columns, key=lambda column: column.name not in flagged)
    return section(
        "quality",
        "Data quality",
        _quality_lead(report, of_choices),
        _findings(findings),
        grid(*_charts(compared, of_choices)) if with_charts else None,
        tag("div", _columns(ordered, levels), class_="compact"),
        tag("p", _NOTE, class_="note"),
        _values(ordered),
    )


def _quality_lead(report: DataQuality, of_choices: bool) -> Html:
    """Returns the introductory sentences.

    They say which rows are compared, how many figures are above a limit, and which figures have no limit.
    """
    compared, findings = report.compared, report.findings
    today, train = compared.today, compared.train
    what = (
        f"The test rows of {compared.day} against the train rows"
        if compared.cut
        else f"The log of {compared.day} against its {counted(len(train), 'train day')}"
    )
    count = len(findings)
    stopped = any(finding.level == "stop" for finding in findings)
    verdict = f"{counted(count, 'figure')} {'is' if count == 1 else 'are'} above a limit."
    if not count:
        is_checked = any(column.psi is not None or column.cells + column.nulls for column in compared.columns)
        verdict = "Nothing is above a limit." if is_checked else "No figure has a limit."
    clicks = (
        f"{counted(today.clicks, 'choice')} in {counted(today.rows, 'row')} "
        f"({counted(sum(p.clicks for p in train), 'choice')} in {counted(sum(p.rows for p in train), 'row')} "
        "in training). "
        if of_choices
        else f"{counted(today.rows, 'row')}, {_clicked([today])} of them clicks "
        f"({_clicked(train)} in training). "
    )
    return lead(
        f"{what}: {clicks}",
        tag("strong", verdict, class_="warn" if count else "good"),
        f" Not compared: {'; '.join(report.unchecked)}." if report.unchecked else None,
        " The job was stopped: no features were published." if stopped else None,
    )


def _clicked(pieces: list[PieceRows]) -> str:
    """Returns the share of rows that are clicks, as text."""
    return numbers.percent(share(sum(p.clicks for p in pieces), sum(p.rows for p in pieces)), 2)


def _findings(findings: Iterable[Finding]) -> Html | None:
    """Returns a table of the figures about data quality that are above their limits; None if none is."""
    rows: list[list[Child]] = [
        [
            _mark(finding.level, finding.level),
            _short(finding.message, 200),
            numbers.decimal(finding.value, 3),
            numbers.decimal(finding.limit, 3),
            tag("code", f"quality.{finding.check}_{finding.level}"),
        ]
        for finding in findings
    ]
    headers = ["Level", "What was found", "Value", "Limit", "Set by"]
    return table(headers, rows, "Above a limit", text=(0, 1, 4)) if rows else None


def _charts(compared: DayComparison, of_choices: bool) -> list[Html]:
    """Returns two charts: the number of rows and the click rate, by day.

    If each row of the log is an item that a user chose, the second chart has the number of such rows.

    If one partition of the log is divided into splits, the charts show them by split instead.
    """
    order: list[str] = list(SPLITS)
    pieces = compared.pieces
    by = "split" if compared.cut else "day"
    names = [piece.split if compared.cut else piece.dt[5:] for piece in pieces]
    groups = [order.index(piece.split) for piece in pieces]
    keys = None if compared.cut else legend(order)
    rates = [100 * piece.clicks / piece.rows if piece.rows else math.nan for piece in pieces]
    choices = [float(piece.clicks) for piece in pieces]
    charts = (
        (
            "Rows of the log",
            f"that could be parsed, by {by}.",
            [float(piece.rows) for piece in pieces],
            "rows",
        ),
        ("Choices of the log", f"rows with an item that a user chose, by {by}.", choices, "choices")
        if of_choices
        else ("Clicks of the log", f"share of clicks in the parsed rows, by {by}.", rates, "click rate, %"),
    )
    return [
        figure(
            join([keys, columns(title, names, values, groups=groups, x_label=by, y_label=unit)]),
            title,
            caption,
        )
        for title, caption, values, unit in charts
    ]


def _columns(ordered: list[ColumnReport], levels: Levels) -> Html:
    """Returns a table with one row per column of the raw log."""
    headers = [
        "Column",
        "Mark",
        "Null",
        "Null in training",
        "Distinct",
        "New values",
        "PSI",
        "By chance",
    ]
    rows: list[list[Child]] = [
        [
            tag("code", _short(column.name)),
            _worst(column, levels),
            _marked(numbers.percent(column.null_rate, 2), levels.get((column.name, "null_rate_change"))),
            numbers.percent(column.train_null_rate, 2),
            numbers.count(column.distinct),
            _marked(numbers.percent(column.new_value_rate, 2), levels.get((column.name, "new_value_rate"))),
            _marked(numbers.decimal(column.psi, 3), levels.get((column.name, "psi"))),
            numbers.decimal(column.psi_noise, 3),
        ]
        for column in ordered
    ]
    return table(headers, rows, "Columns of the day", text=(0, 1))


def _worst(column: ColumnReport, levels: Levels) -> Html | None:
    column_levels = {level for (name, _), level in levels.items() if name == column.name}
    level = next((level for level in ("stop", "warn") if level in column_levels), None)
    return level and _mark(level, level)


def _marked(text: str, level: str | None) -> Child:
    return text if level is None else _mark(text, level)


def _mark(text: str, level: str) -> Html:
    return tag("strong", text, class_=level)


def _values(ordered: list[ColumnReport]) -> Html:
    """Returns a table of the most frequent values of each column, and of the range of numeric columns."""
    rows: list[list[Child]] = []
    for column in ordered:
        cells = column.nulls + column.cells
        lines: list[list[Child]] = []
        for value, count, before in column.top[:_TOP]:
            in_train = None if before is None else share(before, column.train_nulls + column.train_cells)
            lines.append(_value(str(value), share(count, cells), in_train))
        for new, count in column.new_top[:1]:
            lines.append(_value(new, share(count, cells), 0.0, "new: "))
        if column.low is not None:
            spread = f"{column.low:,.6g} to {column.high:,.6g}, mean {column.mean:,.6g}"
            lines.append([spread, None, None])
        rows += [[tag("code", _short(column.name)) if line is lines[0] else None, *line] for line in lines]
    shown = table(["Column", "Value", "Day", "Training"], rows, "Share of rows", text=(0, 1))
    name = "Most frequent values, and the range of numbers"
    return tag("details", tag("summary", name), tag("div", shown, class_="compact"))


def _value(value: str, on_day: float | None, in_train: float | None, before: str = "") -> list[Child]:
    """Returns the table cells of one value: the value, its share on the day, its share on the train days."""
    written = join([before or None, tag("code", _short(value))])
    return [written, numbers.percent(on_day, 2), numbers.percent(in_train, 2)]


def _short(text: str, characters: int = _SHOWN_CHARACTERS) -> str:
    return text if len(text) <= characters else text[:characters] + "…"
