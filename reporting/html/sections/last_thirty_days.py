"""The section about the last thirty days, by run date.

It shows data, AUC, drift, throughput, durations, cost and failures.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date
from statistics import median

from conf.types import Config
from reporting.elements import numbers
from reporting.elements.charts import Reference, Series, columns, line_chart, stacked
from reporting.elements.markup import Child, Html, Section, figure, grid, lead, section, table, tag
from reporting.facts.recent_runs import DAYS, GROUPS, DayFacts, RunHistory
from reporting.facts.run_facts import earlier_run_dates, logistic_regression, published_facts
from storage.lineage import NOT_RECORDED, LineageRecorder
from storage.paths import LakePaths

_REASONS = 3
_FAILURES = 12
_PROBLEM_CHARACTERS = 220
_TIMED = ("build_features", "train_model", "score_daily")


def render(history: RunHistory, run_date: str, psi_warn: float | None) -> Section | None:
    """Returns the section: charts, a table by run date, and the failed attempts.

    Returns None if there is no run to show. Charts are drawn only if there are at least two run dates.

    Args:
        history: the results of the run dates.
        run_date: the last run date.
        psi_warn: the value of quality.psi_warn. The chart of the drift shows this limit as a line.
    """
    days = history.days
    if not any(day.core_s or day.failures for day in days) and len(days) < 2:
        return None
    failures = any(day.failures for day in days)
    charts = _charts(days, history.currency, psi_warn) if len(days) > 1 else []
    return section(
        "history",
        f"The last {DAYS} days",
        _lead(days, run_date, history.currency),
        grid(*(figure(drawn, title, caption) for title, caption, drawn in charts)) if charts else None,
        _failures(days) if failures else None,
        _by_day(days, history.currency),
    )


def _lead(days: Sequence[DayFacts], run_date: str, currency: str | None) -> Html:
    """Returns the introductory sentence: number of run dates, core hours, cost, and failed attempts."""
    failed = sum(len(day.failures) for day in days)
    hours = sum(day.core_s for day in days) / 3600
    costs = [day.cost for day in days if day.cost is not None]
    price = f", {sum(costs):,.2f} {currency}" if costs else ""
    return lead(
        f"Of the {DAYS} run dates up to {run_date}, {len(days)} {'has' if len(days) == 1 else 'have'} run, "
        f"on {_core_time(hours)}{price}. ",
        tag("strong", f"Failed attempts: {failed}.", class_="stop") if failed else "No attempt failed.",
    )


Chart = tuple[str, str, Html]


def _core_time(hours: float) -> str:
    """Returns core hours as text; in core minutes if they are fewer than one hour."""
    return f"{hours:,.1f} core hours" if hours >= 1 else f"{60 * hours:,.1f} core minutes"


def _charts(days: Sequence[DayFacts], currency: str | None, psi_warn: float | None) -> list[Chart]:
    """Returns one tuple (title, caption, chart) for each chart."""
    names = [day.dt[5:] for day in days]
    rows = columns(
        "Rows of the day",
        names,
        [_number(day.rows) for day in days],
        groups=[0] * len(days),
        x_label="run dates",
        y_label="rows of the log",
    )
    seconds = stacked(
        "Duration",
        names,
        [(group, [day.seconds.get(group, math.nan) / 60 for day in days]) for group in GROUPS],
        x_label="run dates",
        y_label="minutes",
    )
    auc, drift, speed = _line_charts(days, psi_warn)
    charts = [
        ("Rows of the day", "of the run date's own log, before any rows were dropped.", rows),
        ("Drops", "share of these rows that were dropped, by reason.", _drops(days, names)),
        ("AUC", "of the models that the gate compared.", auc),
        (
            "Drift",
            "of the day's rows since the train days, and of the scores since the last published lists.",
            drift,
        ),
        ("Throughput", "of the last successful attempt.", speed),
        ("Duration", "of the jobs, without the start of Spark processes.", seconds),
        ("Cost", "of all attempts, including failed ones.", _cost(days, names, currency)),
    ]
    if any(day.failures for day in days):
        charts.append(("Failures", "failed attempts.", _failed(days, names)))
    return charts


def _line_charts(days: Sequence[DayFacts], psi_warn: float | None) -> tuple[Html, Html, Html]:
    """Returns the line charts of AUC, drift and throughput by run date."""
    last = date.fromisoformat(days[-1].dt)

    def points(of: Callable[[DayFacts], float | None]) -> list[tuple[float, float]]:
        return [((date.fromisoformat(day.dt) - last).days, _number(of(day))) for day in days]

    def lines(title: str, unit: str, series: Sequence[Series], limits: Sequence[Reference] = ()) -> Html:
        shown = [line for line in series if line.drawable()]
        return line_chart(
            title,
            shown,
            x_label="run date",
            y_label=unit,
            references=limits if shown else (),
            x_written=lambda x: _month_and_day(last, x),
        )

    auc = [
        Series("challenger", points(lambda day: day.auc)),
        Series("champion", points(lambda day: day.champion_auc)),
        Series("best the log allows", points(lambda day: day.best_auc)),
    ]
    drift = [
        Series("column that drifted most", points(lambda day: day.psi)),
        Series("scores of the lists", points(lambda day: day.score_psi)),
    ]
    limits = [] if psi_warn is None else [Reference("quality.psi_warn", psi_warn)]
    speeds = [Series(job, _over_median(points(_speed_of(job)))) for job in _TIMED]
    return (
        lines("AUC", "AUC on the test day", auc),
        lines("Drift", "population stability index", drift, limits),
        lines("Throughput", "rows per second, 1 = median of the days", speeds),
    )


def _month_and_day(last: date, x: float) -> str:
    """Returns the date `x` days after `last` as month and day, such as 01-31.

    The argument `x` is the value of a tick; it is negative for days before `last`. Returns an empty string if
    it is above 0 or not a whole number.
    """
    if abs(x - round(x)) > 1e-9 or x > 0:
        return ""
    return date.fromordinal(last.toordinal() + round(x)).isoformat()[5:]


def _speed_of(job: str) -> Callable[[DayFacts], float | None]:
    """Returns a function that returns the rows per second of a job on a run date."""
    return lambda day: day.rows_per_s.get(job)


def _over_median(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Divides the y values of the points by their median, and returns the new points."""
    known = [y for _, y in points if math.isfinite(y)]
    middle = median(known) if known else 0.0
    return [(x, y / middle) for x, y in points] if middle else []


def _number(value: float | None) -> float:
    """Returns a value as a float. None becomes NaN, which charts do not draw."""
    return math.nan if value is None else float(value)


def _drops(days: Sequence[DayFacts], names: Sequence[str]) -> Html:
    """Returns a stacked bar chart of the share of dropped rows by run date. Each reason is one layer."""
    total: Counter[str] = Counter()
    for day in days:
        total.update(day.dropped)
    first = [reason for reason, _ in sorted(total.items(), key=lambda item: (-item[1], item[0]))[:_REASONS]]

    def share(day: DayFacts, reasons: Sequence[str]) -> float:
        dropped = sum(day.dropped.get(reason, 0) for reason in reasons)
        return 100 * dropped / day.rows if day.rows else math.nan

    parts = [(reason, [share(day, [reason]) for day in days]) for reason in first]
    rest = sorted(set(total) - set(first))
    if rest:
        parts.append((f"other reasons ({len(rest)})", [share(day, rest) for day in days]))
    return stacked("Drops", names, parts, x_label="run dates", y_label="% of the log's rows")


def _cost(days: Sequence[DayFacts], names: Sequence[str], currency: str | None) -> Html:
    """Returns a bar chart of the cost by run date; of the core hours if no price is configured."""
    priced = any(day.cost is not None for day in days)
    values = [_number(day.cost) if priced else day.core_s / 3600 for day in days]
    return columns(
        "Cost",
        names,
        values,
        groups=[0] * len(days),
        x_label="run dates",
        y_label=str(currency) if priced else "core hours",
    )


def _failed(days: Sequence[DayFacts], names: Sequence[str]) -> Html:
    """Returns a bar chart of the number of failed attempts by run date."""
    return columns(
        "Failures",
        names,
        [float(len(day.failures)) for day in days],
        groups=[1] * len(days),
        x_label="run dates",
        y_label="attempts that failed",
    )


def _failures(days: Sequence[DayFacts]) -> Html:
    """Returns a table of the last failed attempts."""
    failures = sorted((failure for day in days for failure in day.failures), key=lambda f: f.ended_at)
    rows: list[list[Child]] = [
        [
            failure.dt,
            tag("code", failure.job),
            str(failure.exit_code),
            failure.ended_at,
            _short(failure.problem),
        ]
        for failure in reversed(failures[-_FAILURES:])
    ]
    headers = ["Run date", "Job", "Exit code", "Ended", "What it said"]
    caption = (
        f"The last {len(rows)} of {len(failures)} failed attempts"
        if len(failures) > len(rows)
        else "Failed attempts"
    )
    return tag("div", table(headers, rows, caption, text=(0, 1, 3, 4)), class_="compact")


def _short(text: str) -> str:
    """Returns the text on one line, truncated to _PROBLEM_CHARACTERS characters."""
    line = " ".join(text.split())
    return line if len(line) <= _PROBLEM_CHARACTERS else line[:_PROBLEM_CHARACTERS] + "…"


def _by_day(days: Sequence[DayFacts], currency: str | None) -> Html:
    """Returns a table with one row per run date."""
    headers = ["Run date", "Rows", "Dropped", "AUC", "Worst PSI", "Churn", "Minutes", "Core hours"]
    headers += [str(currency)] if currency else []
    rows: list[list[Child]] = [
        [
            day.dt,
            numbers.count(day.rows),
            numbers.percent(day.dropped_share, 2),
            numbers.decimal(day.auc),
            numbers.decimal(day.psi, 3),
            numbers.percent(day.churn),
            numbers.decimal(sum(day.seconds.values()) / 60 if day.seconds else None, 1),
            numbers.decimal(day.core_s / 3600 if day.core_s else None, 2),
            *([numbers.decimal(day.cost, 2)] if currency else []),
            str(len(day.failures)),
        ]
        for day in reversed(days)
    ]
    shown = table([*headers, "Failed"], rows, "By run date, the newest first")
    return tag("details", tag("summary", "The figures by run date"), tag("div", shown, class_="compact"))


# The section about recent runs: one table with model, gate, AUC, hit rate and coverage.


def render_runs(config: Config, run_date: str, recorder: LineageRecorder = NOT_RECORDED) -> Section | None:
    """Returns a table with one row per run date, newest last; None if there are fewer than two run dates.

    Args:
        config: the configuration.
        run_date: the last run date.
        recorder: records the tables that are read, for lineage.
    """
    dates = earlier_run_dates(config, run_date)
    if len(dates) < 2:
        return None
    lake = LakePaths(config.lake, recorder)
    headers = [
        "Run date",
        "Model serving",
        "Gate",
        "AUC",
        "Best AUC",
        "Reached",
        "Logistic AUC",
        "Hit rate",
        "Lift",
        "Coverage",
    ]
    shown = table(headers, [_row(lake, dt) for dt in dates], f"The last {len(dates)} runs", text=(0, 1, 2))
    note = (
        "AUC is that of the run's challenger on its test day; "
        "hit rates are added when the next day's clicks are available."
    )
    return section("nights", "Recent runs", lead(note), shown)


def _row(lake: LakePaths, dt: str) -> list[Child]:
    """Returns the table cells of one run date."""
    evaluation = published_facts(lake.evaluations.partition(dt))
    lists = published_facts(lake.recommendations.partition(dt)) or {}
    measure = published_facts(lake.measures.partition(dt)) or {}
    auc = evaluation["challenger"]["auc"] if evaluation else None
    best = evaluation.get("best_auc") if evaluation else None
    gate = numbers.NONE if evaluation is None else ("promoted" if evaluation["promoted"] else "kept")
    return [
        dt,
        tag("code", str(lists.get("model_version", numbers.NONE))[:8]),
        gate,
        numbers.decimal(auc),
        numbers.decimal(best),
        numbers.percent(numbers.share_reached(auc, best)),
        numbers.decimal((logistic_regression(evaluation) or {}).get("auc")),
        numbers.percent(measure.get("hit_rate")),
        numbers.times(measure.get("lift")),
        numbers.percent(lists.get("coverage")),
    ]
