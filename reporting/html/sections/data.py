"""The section about the data of a run: rows by day, dropped rows, click rates, splits, and missing keys."""

from __future__ import annotations

from collections import Counter

from conf.counted import counted
from conf.types import SPLITS
from reporting.elements import numbers
from reporting.elements.markup import Child, Html, figure, grid, join, lead, missing, section, table, tag
from reporting.facts.run_facts import Day, RunFacts
from reporting.html.charts.bars import columns
from reporting.html.charts.frame import legend

_REASONS = 7


def render(run: RunFacts) -> Html:
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
        charts.append(figure(join([keys, drawn]), "Choices", f"rows with something a user chose, by {by}."))
    elif all(day.click_rate is not None for day in days):
        rates = [100 * (day.click_rate or 0.0) for day in days]
        drawn = columns("Click rate", names, rates, groups=groups, x_label=by, y_label="click rate, %")
        charts.append(figure(join([keys, drawn]), "Click rate", f"share of rows with a click, by {by}."))
    return section(
        "data",
        "Data",
        _lead(run, days),
        grid(*charts),
        grid(_by_day(days, run.of_choices), _by_reason(days), _without_row(run)),
    )


def _lead(run: RunFacts, days: list[Day]) -> Html:
    """Returns the introductory sentence, which says how many rows were read and how the workflow was made."""
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
            " Rows without a choice include drawn ones, at most "
            f"{numbers.count(run.per_positive)} for each choice (negatives.per_positive)."
        )
    return lead(
        f"{counted(sum(day.rows for day in days), 'row')} of {counted(len(once), 'day')}; "
        f"{numbers.count(dropped)} of {counted(rows_in, 'raw row')} ({share}) did not parse "
        f"and {'is' if dropped == 1 else 'are'} in quarantine. The workflow was {workflow}.{drawn}"
    )


def _once(days: list[Day]) -> list[Day]:
    """Returns one entry per day. A day that is divided into several splits has several entries in `days`."""
    return list({day.dt: day for day in days}.values())


def _by_day(days: list[Day], of_choices: bool) -> Html:
    """Returns a table with one row per day and split. For a log of choices, it has their number.

    If a day has rows whose time is on another day, a column has their number.
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
    """Returns a table of the users and items without a row; None if no table of attributes is configured."""
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
