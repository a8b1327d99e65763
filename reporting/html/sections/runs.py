"""The section about recent runs: one table with model, gate, AUC, hit rate and coverage."""

from __future__ import annotations

from conf.types import Config
from reporting.elements import numbers
from reporting.elements.markup import Child, Html, lead, section, table, tag
from reporting.facts.run_facts import earlier_run_dates, logistic_regression, published_facts
from storage.lineage import NOT_RECORDED, LineageRecorder
from storage.paths import Lake


def render(config: Config, run_date: str, recorder: LineageRecorder = NOT_RECORDED) -> Html | None:
    """Returns a table with one row per run date, newest last; None if there are fewer than two run dates.

    Args:
        config: the configuration.
        run_date: the last run date.
        recorder: records the tables that are read, for lineage.
    """
    dates = earlier_run_dates(config, run_date)
    if len(dates) < 2:
        return None
    lake = Lake(config.lake, recorder)
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


def _row(lake: Lake, dt: str) -> list[Child]:
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
