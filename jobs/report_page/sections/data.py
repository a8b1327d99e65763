"""What the night was made of: rows a day, what was dropped and why, click rates, splits."""

from __future__ import annotations

from collections import Counter

from jobs.report_page import numbers
from jobs.report_page.charts.bars import columns
from jobs.report_page.charts.frame import legend
from jobs.report_page.facts import Day, Night
from jobs.report_page.markup import Html, figure, grid, join, lead, missing, section, table

_SPLITS = ("train", "validation", "test")


def render(night: Night) -> Html:
    """Per day of the night's window, or the sentence that build_features has not run."""
    if not night.days:
        return section("data", "Data", missing("The days and splits", "build_features"))
    days = list(night.days)
    names = [day.dt[5:] for day in days]
    groups = [_SPLITS.index(day.split) if day.split in _SPLITS else 0 for day in days]
    keys = legend([split for split in _SPLITS if any(day.split == split for day in days)])
    rows = columns(
        "Rows a day", names, [day.rows for day in days], groups=groups, x_label="day", y_label="rows"
    )
    charts = [figure(join([keys, rows]), "Rows a day", "after dropping, by split.")]
    if all(day.click_rate is not None for day in days):
        rates = [100 * (day.click_rate or 0.0) for day in days]
        drawn = columns("Click rate", names, rates, groups=groups, x_label="day", y_label="click rate, %")
        charts.append(figure(join([keys, drawn]), "Click rate", "share of rows with a click, by day."))
    return section("data", "Data", _lead(night, days), grid(*charts), _table(days))


def _lead(night: Night, days: list[Day]) -> Html:
    dropped: Counter[str] = Counter()
    for day in {day.dt: day for day in days}.values():  # a day cut into splits counts once
        dropped.update(day.dropped)
    reasons = ", ".join(f"{numbers.count(rows)} {reason}" for reason, rows in sorted(dropped.items()) if rows)
    workflow = {"fit": "fitted anew", "extend": "extended", "apply": "applied as it was"}.get(
        night.mode or "", night.mode
    )
    return lead(
        f"{numbers.count(sum(day.rows for day in days))} rows of {len({day.dt for day in days})} days; "
        f"dropped: {reasons or 'none'}. The workflow was {workflow}."
    )


def _table(days: list[Day]) -> Html:
    reasons = sorted({reason for day in days for reason, rows in day.dropped.items() if rows})
    headers = [
        "Day",
        "Split",
        "Rows in",
        *(f"Dropped: {reason}" for reason in reasons),
        "Rows out",
        "Click rate",
    ]
    rows = [
        [
            day.dt,
            day.split,
            numbers.count(day.rows_in),
            *(numbers.count(day.dropped.get(reason, 0)) for reason in reasons),
            numbers.count(day.rows),
            numbers.percent(day.click_rate, 2),
        ]
        for day in days
    ]
    return table(headers, rows, "Rows by day", text=(0, 1))
