"""The section about changes: compares the lists with the last published lists.

It also shows the limits that held the lists back, and the deliveries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reporting.elements import numbers
from reporting.elements.markup import Child, Html, lead, missing, section, table, tag
from reporting.facts.run_facts import RunFacts


def render(run: RunFacts) -> Html:
    """Returns the section, from the tables list_changes and deliveries.

    Lists that were held back have no delivery.
    """
    if run.changes is None:
        return section("changes", "Changes", missing("Changes of the lists", "score_daily"))
    return section("changes", "Changes", _lead(run.changes), _figures(run.changes), _delivered(run.delivery))


def _lead(changes: Mapping[str, Any]) -> Html:
    """Returns the introductory sentence.

    It says what the new lists are compared with, and whether the new lists were held back.
    """
    before = changes["before"]
    against = f"the lists of {before}" if before else "nothing, because no lists were published before"
    if not changes["held_back"]:
        return lead(f"The lists of this run, compared with {against}.")
    past = ", ".join(f"score.stop.{excess['setting']}={excess['limit']:g}" for excess in changes["excesses"])
    served = f"; the lists of {before} are still served." if before else "."
    return lead(
        f"The lists of this run, compared with {against}. They were ",
        tag("strong", "held back", class_="warn"),
        f": they exceed {past}{served}",
    )


def _figures(changes: Mapping[str, Any]) -> Html:
    """Returns a table of the figures. Figures that exceed their limit are marked."""
    past = {excess["figure"] for excess in changes["excesses"]}
    drift = changes.get("score_psi")
    noise = changes.get("score_psi_noise")
    lost, gained = (numbers.count(changes.get(name)) for name in ("users_lost", "users_gained"))
    figures: list[tuple[str, str, str, str]] = [
        (
            "churn",
            "Items new in a user's list",
            numbers.percent(changes.get("churn")),
            "mean over users in both",
        ),
        (
            "jaccard",
            "Jaccard index of both lists",
            numbers.decimal(changes.get("jaccard"), 3),
            "mean over users in both",
        ),
        ("coverage", "Items in some list", numbers.percent(changes["coverage"]), _coverage_before(changes)),
        (
            "cold_share",
            "Entries whose item nobody clicked in training",
            numbers.percent(changes["cold_share"]),
            "",
        ),
        (
            "score_psi",
            "Drift of scores (PSI)",
            numbers.decimal(drift, 3),
            f"chance gives {numbers.decimal(noise, 3)}",
        ),
        (
            "users_lost_share",
            "Users without a list now",
            numbers.percent(changes.get("users_lost_share")),
            f"{lost} lost, {gained} gained",
        ),
    ]
    rows: list[list[Child]] = [
        [name, tag("strong", value, class_="stop") if figure in past else value, note]
        for figure, name, value, note in figures
    ]
    return table(["Figure", "Value", "Note"], rows, "Changes of the lists", text=(0, 2))


def _coverage_before(changes: Mapping[str, Any]) -> str:
    """Returns the coverage of the last published lists as text."""
    before = changes.get("coverage_before")
    return "" if before is None else f"{numbers.percent(before)} before"


def _delivered(delivery: Mapping[str, Any] | None) -> Html | None:
    """Returns a table of the delivery with one row per sink; None if the lists were not delivered."""
    if delivery is None:
        return None
    rows: list[list[Child]] = [
        [
            sink["name"],
            tag("code", sink["target"]),
            numbers.count(sink["rows"]),
            numbers.count(sink["written"]),
            numbers.count(sink["deleted"]),
            numbers.seconds(sink["seconds"]),
        ]
        for sink in delivery["sinks"]
    ]
    return table(
        ["Sink", "Target", "Entries", "Written", "Deleted", "Time"], rows, "Delivered to", text=(0, 1)
    )
