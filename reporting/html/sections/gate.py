"""The section about the gate: its decision, the confidence intervals of the gains, and all checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conf.messages import counted
from reporting.elements import numbers
from reporting.elements.charts import Span, interval_chart
from reporting.elements.markup import Child, Html, Section, figure, grid, lead, missing, section, table, tag
from reporting.facts.run_facts import RunFacts

_NAMES = {
    "auc": "AUC",
    "log_loss": "Log loss",
    "rows": "Rows",
    "users": "Users",
    "calibration": "Calibration",
    "list_ndcg": "NDCG of lists",
    "list_hit_rate": "Hit rate of lists",
    "score_psi": "Drift of scores",
    "feature_psi": "Drift of columns",
    "click_rate_change": "Click rate",
    "oov_share": "Unknown ids",
    "standing": "Decided by people",
}
_MARKS = {"hold": "stop", "warn": "warn"}


def render(run: RunFacts) -> Section:
    """Returns the section about the gate's decision, from the facts of evaluate_model."""
    if run.evaluation is None:
        return section("gate", "Gate", missing("The gate's decision", "evaluate_model"))
    evaluation = run.evaluation
    checks = evaluation.get("checks") or []
    return section(
        "gate",
        "Gate",
        _lead(evaluation),
        _checks(checks) if checks else None,
        grid(
            *_interval(evaluation),
            *_list_interval(evaluation),
            *_lists(evaluation.get("lists") or {}),
            *_drift(evaluation.get("drift") or {}),
        ),
    )


def _lead(evaluation: Mapping[str, Any]) -> Html:
    """Returns the introductory sentence, which says how the interval of the gain in AUC was computed."""
    by = evaluation.get("resampled")
    between = (evaluation.get("intervals") or {}).get("auc")
    if by is None or between is None:
        if reason := evaluation["challenger"].get("unmeasured"):
            return lead(f"The two models were not compared: {reason}.")
        return lead("There was no champion to compare with, or too few rows for a comparison.")
    return lead(
        "Both models scored the same test rows. The interval contains the true difference with "
        f"{between['confidence']:.0%} confidence: it comes from {numbers.count(between['replicates'])} "
        f"resamples of {counted(by['count'], by['by'])}. "
        "The challenger serves if the interval does not begin below minus ",
        tag("code", "gate.margin"),
        f", {evaluation['margin']:g}.",
    )


def _interval(evaluation: Mapping[str, Any]) -> list[Html]:
    """Returns a chart of the challenger's gain in AUC and the confidence interval of the gain.

    The result is a list of one element; an empty list if there is no interval.
    """
    between = (evaluation.get("intervals") or {}).get("auc")
    if between is None:
        return []
    span = Span("challenger minus champion", between["difference"], between["low"], between["high"])
    chart = interval_chart(
        "Gain in AUC",
        span,
        -evaluation["margin"],
        x_label="AUC of the challenger minus that of the champion",
        limit_name="minus gate.margin",
    )
    return [figure(chart, "Gain in AUC", "and its interval, on the test day.")]


def _list_interval(evaluation: Mapping[str, Any]) -> list[Html]:
    """Returns a chart of the challenger's gain in NDCG of lists and the confidence interval of the gain.

    The result is a list of one element; an empty list if there is no interval, or no margin to compare it
    with.
    """
    between = (evaluation.get("intervals") or {}).get("ndcg")
    margin = evaluation.get("lists_margin")
    if between is None or margin is None:
        return []
    title = f"Gain in NDCG@{evaluation['lists']['k']} of lists"
    span = Span("challenger minus champion", between["difference"], between["low"], between["high"])
    chart = interval_chart(
        title,
        span,
        -margin,
        x_label="NDCG of the challenger's lists minus that of the champion's",
        limit_name="minus gate.lists_margin",
    )
    users = counted(evaluation["lists"]["users"], "user")
    return [figure(chart, title, f"and its interval, for {users} with a click in the test split.")]


def _lists(lists: Mapping[str, Any]) -> list[Html]:
    """Returns a table of hit rate and NDCG of both models' lists.

    The result is a list of one element; an empty list if lists were not measured, for example by an earlier
    release.
    """
    rows: list[list[Child]] = [
        [
            model,
            numbers.decimal(lists[model]["hit_rate"], 4),
            numbers.decimal(lists[model]["ndcg"], 4),
            numbers.count(lists[model]["items"]),
        ]
        for model in ("challenger", "champion")
        if lists.get(model)
    ]
    if not rows:
        return []
    k = lists["k"]
    caption = f"Lists of {counted(lists['users'], 'user')}"
    return [tag("div", table(["Model", f"HR@{k}", f"NDCG@{k}", "Items"], rows, caption), class_="compact")]


def _checks(checks: list[Mapping[str, Any]]) -> Html:
    """Returns a table of the results of the checks, with one row per check."""
    rows: list[list[Child]] = [
        [
            _NAMES.get(check["name"], check["name"]),
            tag("strong", check["level"], class_=_MARKS[check["level"]])
            if check["level"] in _MARKS
            else "ok",
            check["said"],
            tag("code", check["setting"]) if check["setting"] else None,
        ]
        for check in checks
    ]
    shown = table(
        ["Check", "Level", "What was found", "Set by"], rows, "The checks of the gate", text=(0, 1, 2, 3)
    )
    return tag("div", shown, class_="compact")


def _drift(drift: Mapping[str, Any]) -> list[Html]:
    """Returns two tables: the columns that drifted most, and the features with the most unknown ids.

    A table is left out if it has no rows.
    """
    tables = (
        (
            "Drift of columns, PSI",
            "Column",
            drift.get("feature_psi"),
            lambda value: numbers.decimal(value, 3),
        ),
        (
            "Ids unknown to the new vocabulary",
            "Feature",
            drift.get("oov_share"),
            lambda value: numbers.percent(value, 2),
        ),
    )
    shown = []
    for caption, header, values, written in tables:
        if values:
            rows: list[list[Child]] = [
                [tag("code", name), written(value)]
                for name, value in sorted(values.items(), key=lambda item: -item[1])
            ]
            shown.append(tag("div", table([header, "Value"], rows, caption), class_="compact"))
    return shown
