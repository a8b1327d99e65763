"""The sections about the lists: relevance, changes, coverage, and a sample of users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from conf.messages import counted
from conf.train_types import ScoreKind
from etl.latest.item_titles import ItemTitle
from reporting.elements import numbers
from reporting.elements.charts import Series, line_chart, percent
from reporting.elements.markup import (
    Child,
    Html,
    Section,
    figure,
    grid,
    join,
    lead,
    missing,
    section,
    table,
    tag,
)
from reporting.facts.run_facts import MOST_CLICKED, ItemCounts, RunFacts, UserList

Titles: TypeAlias = Mapping[str, ItemTitle]

_AGAINST = {"next_day": "the clicks of the day after", "test_split": "the clicks of the test split"}


def render_quality(run: RunFacts) -> Section:
    """Returns the section about the lists of this date.

    If the clicks on these lists are not known yet, the section shows the lists of the previous day.
    """
    if run.measure is None:
        words = missing("Hits of the lists", "measure_recommendations")
        return section("measured", "Lists against clicks", words)
    values, popular = run.measure.values, run.measure.values["popular"]
    if values.get("unmeasured"):
        words = lead(f"The lists of {run.measure.dt} were not measured: {values['unmeasured']}.")
        return section("measured", "Lists against clicks", words, *_contenders(values.get("blend")))
    k, cold = values["k"], values.get("cold_users")
    rows: list[list[Child]] = [
        ["These lists", numbers.count(values["users"]), *_measures(values)],
        [
            "The most popular item" if k == 1 else f"The {k} most popular items",
            numbers.count(values["users"]),
            *_measures(popular),
        ],
    ]
    truth = values.get("truth")
    if truth:
        users = numbers.count(values["users"])
        rows.append(["Lists by the true click probability", users, *_measures(truth["click_probability"])])
        rows.append(["Best possible lists", users, *_measures(truth["best"])])
    if cold:
        rows.append(["These lists, users new to the log", numbers.count(cold["users"]), *_measures(cold)])
    against = _AGAINST.get(values["against"], str(values["against"]))
    sentence = lead(
        f"The lists of {run.measure.dt} against {against}, for users who clicked and are known from the "
        f"train days: the hit rate is {numbers.times(values['lift'])} that of the most popular "
        f"items{_share_of_best(truth)}."
    )
    headers = ["Lists", "Users", f"Hit rate @{k}", f"NDCG @{k}", "Item coverage"]
    ranked = table(headers, rows, "Ranking quality")
    parts = [
        ranked,
        *_cold_start(values.get("cold_start"), k),
        *_recall(values.get("candidates")),
        *_contenders(values.get("blend")),
    ]
    return section("measured", "Lists against clicks", sentence, *parts)


def _share_of_best(truth: Mapping[str, Any] | None) -> str:
    """Returns the end of a sentence: the share of the best possible hit rate that the lists reach.

    The result is empty if the share is unknown.
    """
    if not truth or truth["share_of_best"] is None:
        return ""
    return (
        f", and {numbers.percent(truth['share_of_best'])} of the hit rate of the best possible lists, "
        f"which contain the items with the highest true probability that the user sees and clicks them"
    )


def _cold_start(cold_start: Mapping[str, Any] | None, k: int) -> list[Html]:
    """Returns a table of the hit rates of new users and new items, as a list of one element.

    The list is empty if they were not measured, or if there are none.
    """
    if not cold_start or not (cold_start["new_users"]["users"] or cold_start["new_items"]["users"]):
        return []
    with_best = "best" in cold_start["known_users"]
    kinds = ["lists", "popular", *(["best"] if with_best else [])]
    rows: list[list[Child]] = [
        [name, numbers.count(group["users"]), *(numbers.percent(group[kind]["hit_rate"]) for kind in kinds)]
        for name, group in (
            ("Users known to the model", cold_start["known_users"]),
            ("Users new to the model", cold_start["new_users"]),
            ("Clicks on items new to the model", cold_start["new_items"]),
        )
        if group["users"]
    ]
    headers = ["Clicks of", "Users", f"Hit rate @{k}", "Most popular items"]
    new = cold_start["new_items"]
    one = new["items"] == 1
    shares = (
        f"{counted(new['items'], 'item')} {'is' if one else 'are'} new to the model. "
        f"{'It has' if one else 'They have'} "
        f"{numbers.percent(new['position_share'])} of the entries of all lists, and "
        f"{numbers.percent(new['click_share'])} of the clicks."
    )
    return [table([*headers, *(["Best possible lists"] if with_best else [])], rows, shares)]


def _recall(recall: Mapping[str, Any] | None) -> list[Html]:
    """Returns a table of the recall of the candidates by source, as a list of one element.

    Users clicked items after the lists were made; the recall is the share of these items that were
    candidates. The list is empty if the recall was not measured.
    """
    if not recall or recall["recall"] is None:
        return []
    rows: list[list[Child]] = [["All candidates", numbers.percent(recall["recall"])]]
    rows += [[name, numbers.percent(share)] for name, share in recall["by_source"].items()]
    headers = ["Source", f"Recall @{recall['mean_candidates']:,.0f}"]
    return [
        table(
            headers,
            rows,
            "Clicked items that were candidates; an item from several sources counts for the first of them",
        )
    ]


def _contenders(blend: Mapping[str, Any] | None) -> list[Html]:
    """Returns a table of the rankings that learn_blend compared, as a list of one element.

    The list is empty if learn_blend did not choose a ranking (score.blend=none, or no validation clicks).
    """
    if not blend or not blend["contenders"]:
        return []
    names = {"model": "Model alone", "blend": "Blend of the model and all sources"}
    rows: list[list[Child]] = [
        [
            names.get(contender["name"], f"Source {contender['name']} alone")
            + (" (chosen)" if contender["name"] == blend["chosen"] else ""),
            numbers.percent(contender["hit_rate"]),
            numbers.decimal(contender["ndcg"]),
        ]
        for contender in blend["contenders"]
    ]
    k, users = blend["k"], counted(blend["users"], "user")
    words = f"Possible rankings of these lists, measured for {users} by clicks of the validation split"
    return [table(["Ranking", f"Hit rate @{k}", f"NDCG @{k}"], rows, words)]


def _measures(values: Mapping[str, Any]) -> list[Child]:
    """Returns the table cells with hit rate, NDCG and coverage."""
    return [
        numbers.percent(values.get("hit_rate")),
        numbers.decimal(values.get("ndcg")),
        numbers.percent(values.get("coverage")),
    ]


# The section about changes compares the lists with the last published lists.
# It also shows the deliveries or, if the lists were not published, the limits that they exceed.


def render_changes(run: RunFacts) -> Section:
    """Returns the section, which shows the tables list_changes and deliveries of the run.

    Lists that were not published were not delivered either.
    """
    if run.changes is None:
        return section("changes", "Changes", missing("Changes of the lists", "score_daily"))
    return section(
        "changes", "Changes", _changes_lead(run.changes), _figures(run.changes), _delivered(run.delivery)
    )


def _changes_lead(changes: Mapping[str, Any]) -> Html:
    """Returns the introductory sentence.

    It names the lists that the new lists are compared with, and says whether the new lists were published.
    """
    before = changes["before"]
    against = f"the lists of {before}" if before else "nothing, because no lists were published before"
    if not changes["held_back"]:
        return lead(f"The lists of this run, compared with {against}.")
    past = ", ".join(f"score.stop.{excess['setting']}={excess['limit']:g}" for excess in changes["excesses"])
    served = f"; the lists of {before} are still served." if before else "."
    return lead(
        f"The lists of this run, compared with {against}. They were ",
        tag("strong", "not published", class_="warn"),
        f": they exceed {past}{served}",
    )


def _figures(changes: Mapping[str, Any]) -> Html:
    """Returns a table of the changes of the lists. It marks the figures that exceed their limit."""
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


# The section about coverage: how often items are recommended, and how concentrated the lists are.

_TOP = 10


def most_recommended(counts: ItemCounts | None) -> list[str]:
    """Returns the items that the section about coverage shows."""
    return [item for item, _ in _ordered(counts)[:_TOP]] if counts else []


def _ordered(counts: ItemCounts) -> list[tuple[str, int]]:
    """Returns pairs (item, number of lists), the most recommended item first."""
    return sorted(counts.times.items(), key=lambda item: (-item[1], item[0]))


def render_coverage(run: RunFacts, counts: ItemCounts | None, titles: Titles) -> Section:
    """Returns the section: the concentration of the lists, and the items that are recommended most."""
    if run.recommendations is None or counts is None or not counts.rows:
        return section("coverage", "Coverage", missing("How often items are recommended", "score_daily"))
    items = int(run.recommendations.facts["items"])
    ordered = _ordered(counts)
    curve = _concentration([times for _, times in ordered], items, counts.rows)
    drawn = line_chart(
        "Concentration",
        [Series("lists of this run", curve), Series("every item equally often", [(0.0, 0.0), (1.0, 1.0)])],
        x_label="share of items, most recommended first",
        y_label="share of list entries",
        from_zero=True,
        x_written=percent,
        y_written=percent,
    )
    chart = figure(
        drawn, "Concentration", "share of all list entries whose item is among the most recommended items."
    )
    return section(
        "coverage",
        "Coverage",
        _coverage_lead(items, ordered, counts),
        grid(chart, _top(ordered, counts.rows, titles)),
    )


def _concentration(times: list[int], items: int, rows: int) -> list[tuple[float, float]]:
    """Returns the points of the concentration curve, from (0, 0) to (1, 1).

    The items are ordered by their number of recommendations, descending. For the first items of this order, x
    is their share of all items, and y is their share of all list entries.
    """
    points, taken = [(0.0, 0.0)], 0
    for position, count in enumerate(times, start=1):
        taken += count
        points.append((position / max(items, len(times)), taken / rows))
    return points if points[-1][0] == 1.0 else [*points, (1.0, 1.0)]


def _coverage_lead(items: int, ordered: list[tuple[str, int]], counts: ItemCounts) -> Html:
    """Returns the introductory sentence.

    It contains the number of recommended items, and the share of all list entries whose item is in the most
    recommended tenth of the items.
    """
    tenth = sum(times for _, times in ordered[: max(1, items // 10)]) / counts.rows
    part = ""
    if counts.rows < counts.of_rows:
        part = f" Counted in {numbers.count(counts.rows)} of {counted(counts.of_rows, 'entry', 'entries')}."
    return lead(
        f"{numbers.count(len(ordered))} of {counted(items, 'item')} {'is' if len(ordered) == 1 else 'are'} "
        "recommended to someone; "
        f"the most recommended tenth of the items takes {numbers.percent(tenth)} of all list entries.{part}"
    )


def _top(ordered: list[tuple[str, int]], rows: int, titles: Titles) -> Html:
    """Returns a table of the items that are recommended most."""
    most = [
        [_item(item, titles), numbers.count(times), numbers.percent(times / rows, 2)]
        for item, times in ordered[:_TOP]
    ]
    return table(["Item", "Lists", "Share of entries"], most, "Most recommended items")


def _item(item: str, titles: Titles) -> Html:
    """Returns an item: its id or, if its title is known, the title, the id, and a link to its picture.

    The page does not contain pictures, because it must not send requests to servers.
    """
    known, code = titles.get(item), tag("code", item)
    if known is None:
        return code
    named = [] if known.title == item else [tag("span", known.title, class_="title"), " "]
    if not _is_web_address(known.image):
        return join([*named, code])
    words = f"Picture of {known.title}"
    link = tag("a", "picture", href=known.image, rel="noreferrer noopener", title=words, aria_label=words)
    return join([*named, code, " ", link])


def _is_web_address(address: str | None) -> bool:
    """Returns whether an address begins with http or https. Such a link cannot run code in the page."""
    try:
        parts = urlsplit(address or "")
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)


# The section with a sample: the lists of a few users, and the items that these users clicked.


def render_sample(
    lists: Sequence[UserList],
    scores: ScoreKind,
    titles: Titles,
    context: Mapping[str, Any] | None = None,
) -> Section:
    """Returns the section: one card per user.

    Args:
        lists: the lists of a few users.
        scores: the kind of the lists' scores.
        titles: the titles of items.
        context: the raw values of context columns with which the lists were scored; None if there are none.
    """
    if not lists:
        return section("sample", "A few lists", missing("Lists of users", "score_daily"))
    sentence = lead(
        "A sample of users, evenly spread over all users. “Before” counts how often the user clicked the "
        "item and how often the item was shown to the user on the days listed under Data; “why” is "
        "“ranked”, or names the business rule that put the item there."
        + (f" The lists were scored with {_context(context)}." if context else "")
    )
    return section(
        "sample", "A few lists", sentence, grid(*(_card(user_list, scores, titles) for user_list in lists))
    )


def _context(context: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in sorted(context.items()))


def _card(user_list: UserList, scores: ScoreKind, titles: Titles) -> Html:
    """Returns a card with the list of one user and the clicks of this user."""
    history, are_rates = user_list.history, scores == "click_probability"
    rows: list[list[Child]] = []
    for position, item, score, reason in user_list.entries:
        clicks, shown = history.items.get(item, (0, 0)) if history else (0, 0)
        before = f"{clicks} of {shown}" if shown else numbers.NONE
        written = numbers.percent(score) if are_rates else numbers.decimal(score)
        rows.append([str(position), _item(item, titles), written, reason, before])
    headers = ["#", "Item", "Probability" if are_rates else "Score", "Why", "Before"]
    shown_list = table(headers, rows, f"Recommended to {user_list.user}", text=(1, 3))
    return tag(
        "div",
        tag("h3", "User ", tag("code", user_list.user)),
        _clicked(user_list, titles),
        shown_list,
        class_="card",
    )


def _clicked(user_list: UserList, titles: Titles) -> Html | None:
    """Returns the items that the user clicked most; None if the clicks are not known."""
    if user_list.history is None:
        return None
    most = user_list.history.most_clicked(MOST_CLICKED)
    if not most:
        return tag("p", "No clicks so far.", class_="note")
    items = [tag("li", _item(item, titles), f" {clicks} of {shown}") for item, clicks, shown in most]
    return tag("div", tag("p", "Clicked most:", class_="note"), tag("ul", *items, class_="chips"))
