"""The section about what was shown: how much of the lists users saw, and the click rate of each position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conf.counted import counted
from reporting.elements import numbers
from reporting.elements.markup import Child, Html, lead, section, table, tag
from reporting.facts.run_facts import RunFacts

_REASONS = {
    "invalid": "user or item missing, or position not a number from 1 on",
    "user": "user without a list",
    "model_version": "other model than that of the list",
    "variant": "other variant than that of the list",
    "item": "item not in the list",
    "position": "other position in the list",
}


def render(run: RunFacts) -> Html | None:
    """Returns the section; None if the lists last measured have no log of impressions."""
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
    return section("impressions", "Shown entries", _lead(facts, run.measure.dt), *parts)


def _lead(facts: Mapping[str, Any], date: str) -> Html:
    """Returns the introductory sentences."""
    users, entries = facts["users"], facts["entries"]
    words: list[Child] = [
        f"Of the lists of {date}, {numbers.percent(facts['users_shown'] / users if users else None)} of the "
        f"users and {numbers.percent(facts['entries_shown'] / entries if entries else None)} of the entries "
        f"were shown on {facts['day']}. "
    ]
    if facts["clicked_not_shown"]:
        number = facts["clicked_not_shown"]
        verbs = ("was", "is") if number == 1 else ("were", "are")
        text = f"{counted(number, 'entry', 'entries')} {verbs[0]} clicked, but {verbs[1]} not in the log. "
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
    """Returns the click rates of explored positions: as drawn, and in the order of the model's scores."""
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
    return table(["Drawn items", "Click rate", "Low", "High"], rows, words)


def _figures(figures: Mapping[str, Any]) -> list[Child]:
    bounds = [numbers.percent(figures[name]) for name in ("low", "high")]
    return [
        numbers.count(figures["shown"]),
        numbers.count(figures["clicked"]),
        numbers.percent(figures["click_rate"]),
        f"{bounds[0]} to {bounds[1]}",
    ]
