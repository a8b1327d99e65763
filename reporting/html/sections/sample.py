"""A few users' lists, beside what these users clicked."""

from __future__ import annotations

from collections.abc import Sequence

from reporting.elements import numbers
from reporting.elements.markup import Child, Html, grid, lead, missing, section, table, tag
from reporting.facts.list_facts import UserList

_CLICKED = 5


def render(lists: Sequence[UserList]) -> Html:
    """One card a user."""
    if not lists:
        return section("sample", "A few lists", missing("Lists of users", "score_daily"))
    sentence = lead(
        "Users evenly spread over all users. “Before” counts how often the user clicked the item and how often it was "
        "shown to the user in the days of the data above; “why” is ranked, or the business rule that put the item there."
    )
    return section("sample", "A few lists", sentence, grid(*(_card(each) for each in lists)))


def _card(each: UserList) -> Html:
    history = each.history
    rows: list[list[Child]] = []
    for position, item, score, reason in each.entries:
        clicks, shown = history.items.get(item, (0, 0)) if history else (0, 0)
        before = f"{clicks} of {shown}" if shown else numbers.NONE
        rows.append([str(position), tag("code", item), numbers.percent(score), reason, before])
    shown_list = table(
        ["#", "Item", "Probability", "Why", "Before"], rows, f"Recommended to {each.user}", text=(1, 3)
    )
    return tag("div", tag("h3", "User ", tag("code", each.user)), _clicked(each), shown_list, class_="card")


def _clicked(each: UserList) -> Html | None:
    if each.history is None:
        return None
    most = each.history.most_clicked(_CLICKED)
    if not most:
        return tag("p", "No clicks so far.", class_="note")
    items = [tag("li", tag("code", item), f" {clicks} of {shown}") for item, clicks, shown in most]
    return tag("div", tag("p", "Clicked most:", class_="note"), tag("ul", *items, class_="chips"))
