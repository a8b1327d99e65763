"""The sections about production: an experiment with another model, and the list entries that users saw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conf.messages import counted
from reporting.elements import numbers
from reporting.elements.markup import Child, Html, Section, lead, section, table, tag
from reporting.facts.run_facts import RunFacts
from scoring.evaluation.experiment_measures import MISMATCH_P

_MEASURES = {
    "hit_rate": "Hit rate",
    "ndcg": "NDCG",
    "mrr": "MRR",
    "hit_user_share": "Users who clicked an item of their list",
}


def render_experiment(run: RunFacts) -> Section | None:
    """Returns the section about the experiment; None if there is none in the new or last measured lists."""
    facts = (run.recommendations.facts.get("experiment") if run.recommendations else None) or {}
    measured = (run.measure.values.get("experiment") if run.measure else None) or {}
    if not facts and not measured:
        return None
    parts = []
    if run.measure and measured:
        k = run.measure.values["k"]
        parts = [
            _variants(measured, run.measure.dt, k),
            _differences(measured, measured["total"]["differences"], _days(measured["total"]), k),
        ]
        if len(measured["total"]["days"]) > 1:
            parts.append(
                _differences(measured, measured["differences"], f"Differences of {run.measure.dt}", k)
            )
    return section("experiment", "Experiment", _experiment_lead(facts, measured), *parts)


def _experiment_lead(facts: Mapping[str, Any], measured: Mapping[str, Any]) -> Html:
    """Returns the introductory sentences: the tested model, the state of the experiment, and warnings."""
    name, share = facts.get("name", measured.get("name")), facts.get("share", measured.get("share"))
    words: list[Child] = [
        "Experiment ",
        tag("code", str(name)),
        f": {numbers.percent(share)} of the users get the lists of another model. ",
    ]
    if facts.get("idle_because"):
        words.append(
            tag(
                "strong",
                f"The control model serves all users, because {facts['idle_because']}. ",
                class_="warn",
            )
        )
    if measured.get("stops_on"):
        words.append(
            tag("strong", f"The guard rail stops the experiment on {measured['stops_on']}. ", class_="stop")
        )
    p_values = [p for p in (measured.get("sample_ratio_p") or {}).values() if p is not None]
    if p_values and min(p_values) < MISMATCH_P:
        text = (
            "The numbers of users in the two variants do not fit the configured share "
            f"(p={min(p_values):.2g}). "
        )
        words.append(tag("strong", text, class_="warn"))
    if not measured:
        words.append("The lists of the experiment have not been compared with clicks yet.")
    return lead(*words)


def _variants(measured: Mapping[str, Any], date: str, k: int) -> Html:
    """Returns a table with one row for each variant, for the lists of one date."""
    rows: list[list[Child]] = [
        [
            name,
            tag("code", str(figures["model_version"])[:8]),
            numbers.count(figures["users"]),
            numbers.count(figures["clicked"]),
            numbers.percent(figures["hit_rate"]),
            numbers.decimal(figures["ndcg"]),
            numbers.decimal(figures["mrr"]),
            numbers.percent(figures["coverage"]),
        ]
        for name, figures in measured["variants"].items()
    ]
    headers = [
        "Variant",
        "Model",
        "Users",
        "With clicks",
        f"Hit rate @{k}",
        f"NDCG @{k}",
        "MRR",
        "Item coverage",
    ]
    return table(headers, rows, f"Lists of {date} against the clicks of the day after", text=(0, 1))


def _days(total: Mapping[str, Any]) -> str:
    days, left_out = total["days"], total["left_out"]
    words = (
        f"Differences of {len(days)} dates, {days[0]} to {days[-1]}"
        if len(days) > 1
        else (f"Differences of {days[0]}" if days else "Differences")
    )
    verb = "is" if len(left_out) == 1 else "are"
    dates = counted(len(left_out), "date")
    why = "with other models, or with another share, salt, length of lists or other resamples,"
    return words + (f"; {dates} {why} {verb} left out" if left_out else "")


def _differences(measured: Mapping[str, Any], differences: Mapping[str, Any], words: str, k: int) -> Html:
    """Returns a table of the differences, treatment minus control, with their intervals."""
    rows: list[list[Child]] = []
    for measure, name in _MEASURES.items():
        between = differences.get(measure)
        if between is not None:
            absolute = [numbers.decimal(between[key]) for key in ("difference", "low", "high")]
            relative = [numbers.percent(between[f"relative_{key}"]) for key in ("difference", "low", "high")]
            title = f"{name} @{k}" if measure in ("hit_rate", "ndcg") else name
            rows.append(
                [
                    title,
                    absolute[0],
                    f"{absolute[1]} to {absolute[2]}",
                    relative[0],
                    f"{relative[1]} to {relative[2]}",
                ]
            )
    interval = f"{measured['confidence']:.0%} interval"
    headers = ["Treatment minus control", "Difference", interval, "Relative", interval]
    return table(headers, rows, words)


# The section about impressions: the share of the lists that users saw, and the click rate of each position.

_REASONS = {
    "invalid": "user or item missing, or position not a number of at least 1",
    "user": "user without a list",
    "model_version": "other model than that of the list",
    "variant": "other variant than that of the list",
    "item": "item not in the list",
    "position": "other position in the list",
}


def render_impressions(run: RunFacts) -> Section | None:
    """Returns the section about impressions; None if the last measured lists have no log of them."""
    facts = (run.measure.values.get("impressions") if run.measure else None) or {}
    if run.measure is None or not facts:
        return None
    parts = [_rates(facts, run.measure.dt)]
    if facts["unmatched"]:
        rows: list[list[Child]] = [
            [_REASONS[reason], numbers.count(number), numbers.percent(number / facts["impressions"])]
            for reason, number in facts["unmatched"].items()
        ]
        parts.append(table(["Reason", "Impressions", "Share"], rows, "Impressions that fit no list"))
    if "explored" in facts:
        parts.append(_explored(facts))
    return section("impressions", "Shown entries", _impressions_lead(facts, run.measure.dt), *parts)


def _impressions_lead(facts: Mapping[str, Any], date: str) -> Html:
    """Returns the introductory sentences: how many users and entries were seen."""
    users, entries = facts["users"], facts["entries"]
    words: list[Child] = [
        f"On {facts['day']}, {numbers.percent(facts['users_shown'] / users if users else None)} of the users "
        f"with a list of {date} saw entries of their lists. These are "
        f"{numbers.percent(facts['entries_shown'] / entries if entries else None)} of all entries. "
    ]
    if facts["clicked_not_shown"]:
        number = facts["clicked_not_shown"]
        verbs = ("was", "is") if number == 1 else ("were", "are")
        text = (
            f"{counted(number, 'entry', 'entries')} {verbs[0]} clicked, but {verbs[1]} not in the log of "
            "impressions. "
        )
        words.append(tag("strong", text, class_="warn"))
    return lead(*words)


def _rates(facts: Mapping[str, Any], date: str) -> Html:
    """Returns a table with one row for each variant and position that was shown."""
    rows: list[list[Child]] = []
    for variant, figures in facts["variants"].items():
        rows.append([variant, "all", *_figures(figures)])
        rows += [
            [variant, str(place["position"]), *_figures(place)]
            for place in figures["positions"]
            if place["shown"]
        ]
    headers = ["Variant", "Position", "Shown", "Clicked", "Click rate", f"{facts['confidence']:.0%} interval"]
    return table(headers, rows, f"Entries of the lists of {date} that were shown", text=(0,))


def _explored(facts: Mapping[str, Any]) -> Html:
    """Returns a table of the click rates of explored positions.

    It compares two click rates of the same items: the click rate in the order that exploration drew, and an
    estimate of the click rate in the order of the scores.
    """
    explored = facts["explored"]
    names = {"click_rate": "As drawn", "by_score": "In the order of the scores", "difference": "Difference"}
    rows: list[list[Child]] = [
        [name, *(numbers.percent(explored[key][bound]) for bound in ("value", "low", "high"))]
        for key, name in names.items()
        if explored.get(key)
    ]
    if explored["reason"]:
        rows.append([f"Not estimated: {explored['reason']}", "", "", ""])
    entries = numbers.counted(explored.get("effective_entries"), "effective entry", "effective entries")
    words = f"Explored positions, {entries}"
    if explored.get("equal_scores"):
        words += f"; {counted(explored['equal_scores'], 'entry', 'entries')} of equal scores left out"
    return table(["Drawn items", "Click rate", "Low", "High"], rows, words)


def _figures(figures: Mapping[str, Any]) -> list[Child]:
    bounds = [numbers.percent(figures[name]) for name in ("low", "high")]
    return [
        numbers.count(figures["shown"]),
        numbers.count(figures["clicked"]),
        numbers.percent(figures["click_rate"]),
        f"{bounds[0]} to {bounds[1]}",
    ]
