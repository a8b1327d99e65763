"""What became of the lists since the last published ones, whether that held them back, and who has them now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reporting.elements import numbers
from reporting.elements.markup import Child, Html, lead, missing, section, table, tag
from reporting.facts.run_facts import RunFacts


def render(run: RunFacts) -> Html:
    """From list_changes and deliveries; lists that were held back have the first alone."""
    if run.changes is None:
        return section("changes", "Changes", missing("Changes of the lists", "score_daily"))
    return section("changes", "Changes", _lead(run.changes), _figures(run.changes), _delivered(run.delivery))


def _lead(changes: Mapping[str, Any]) -> Html:
    before = changes["before"]
    against = f"the lists of {before}" if before else "nothing: no lists were published before"
    if not changes["held_back"]:
        return lead(f"Tonight's lists against {against}.")
    past = ", ".join(f"score.stop.{each['setting']}={each['limit']:g}" for each in changes["excesses"])
    served = f"; {before} stays served." if before else "."
    return lead(
        f"Tonight's lists against {against}. They were ",
        tag("strong", "held back", class_="warn"),
        f": past {past}{served}",
    )


def _figures(changes: Mapping[str, Any]) -> Html:
    past = {each["figure"] for each in changes["excesses"]}
    drift = changes.get("score_psi")
    noise = changes.get("score_psi_noise")
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
        ("coverage", "Items in some list", numbers.percent(changes["coverage"]), _was(changes)),
        ("cold_share", "Entries nobody clicked in train", numbers.percent(changes["cold_share"]), ""),
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
            f"{numbers.count(changes.get('users_lost'))} lost, {numbers.count(changes.get('users_gained'))} gained",
        ),
    ]
    rows: list[list[Child]] = [
        [name, tag("strong", value, class_="stop") if figure in past else value, note]
        for figure, name, value, note in figures
    ]
    return table(["Figure", "Value", "Note"], rows, "Changes of the lists", text=(0, 2))


def _was(changes: Mapping[str, Any]) -> str:
    before = changes.get("coverage_before")
    return "" if before is None else f"{numbers.percent(before)} before"


def _delivered(delivery: Mapping[str, Any] | None) -> Html | None:
    if delivery is None:
        return None
    rows: list[list[Child]] = [
        [
            each["name"],
            tag("code", each["target"]),
            numbers.count(each["rows"]),
            numbers.count(each["written"]),
            numbers.count(each["deleted"]),
            numbers.seconds(each["seconds"]),
        ]
        for each in delivery["sinks"]
    ]
    return table(
        ["Sink", "Target", "Entries", "Written", "Deleted", "Time"], rows, "Delivered to", text=(0, 1)
    )
