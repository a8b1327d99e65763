"""The section with a sample: the lists of a few users, and the items that these users clicked."""

from __future__ import annotations

from collections.abc import Sequence

from conf.train_types import ScoreKind
from reporting.elements import numbers
from reporting.elements.markup import Child, Html, grid, lead, missing, section, table, tag
from reporting.facts.list_facts import UserList

_CLICKED = 5


def render(lists: Sequence[UserList], scores: ScoreKind) -> Html:
    """Returns the section: one card per user. `scores` says what the scores of the lists are."""
    if not lists:
        return section("sample", "A few lists", missing("Lists of users", "score_daily"))
    sentence = lead(
        "A sample of users, evenly spread over all users. “Before” counts how often the user clicked the "
        "item and how often the item was shown to the user on the days listed under Data; “why” is ranked, "
        "or the business rule that put the item there."
    )
    return section(
        "sample", "A few lists", sentence, grid(*(_card(user_list, scores) for user_list in lists))
    )


def _card(user_list: UserList, scores: ScoreKind) -> Html:
    """Returns a card with the list of one user and the clicks of this user."""
    history, are_rates = user_list.history, scores == "click_probability"
    rows: list[list[Child]] = []
    for position, item, score, reason in user_list.entries:
        clicks, shown = history.items.get(item, (0, 0)) if history else (0, 0)
        before = f"{clicks} of {shown}" if shown else numbers.NONE
        written = numbers.percent(score) if are_rates else numbers.decimal(score)
        rows.append([str(position), tag("code", item), written, reason, before])
    headers = ["#", "Item", "Probability" if are_rates else "Score", "Why", "Before"]
    shown_list = table(headers, rows, f"Recommended to {user_list.user}", text=(1, 3))
    return tag(
        "div", tag("h3", "User ", tag("code", user_list.user)), _clicked(user_list), shown_list, class_="card"
    )


def _clicked(user_list: UserList) -> Html | None:
    """Returns the items that the user clicked most; None if the clicks are not known."""
    if user_list.history is None:
        return None
    most = user_list.history.most_clicked(_CLICKED)
    if not most:
        return tag("p", "No clicks so far.", class_="note")
    items = [tag("li", tag("code", item), f" {clicks} of {shown}") for item, clicks, shown in most]
    return tag("div", tag("p", "Clicked most:", class_="note"), tag("ul", *items, class_="chips"))
