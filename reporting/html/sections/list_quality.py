"""The section about the relevance of the lists: compares them with the most popular items by later clicks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conf.counted import counted
from reporting.elements import numbers
from reporting.elements.markup import Child, Html, lead, missing, section, table
from reporting.facts.run_facts import RunFacts

_AGAINST = {"next_day": "the clicks of the day after", "test_split": "the clicks of the test split"}


def render(run: RunFacts) -> Html:
    """Returns the section about the lists of this date.

    If the clicks on these lists are not known yet, the section shows the lists of the day before.
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
        f"The lists of {run.measure.dt} against {against}, for users known from the train days who clicked: "
        f"{numbers.times(values['lift'])} the hit rate of the most popular items{_share_of_best(truth)}."
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
        f", and {numbers.percent(truth['share_of_best'])} of the hit rate of the best possible lists, which "
        "have the items that the user sees and clicks with the highest true probability"
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

    The recall is the share of the clicked items that were candidates. The list is empty if the recall was not
    measured.
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
            "Clicked items that were candidates; an item of several sources counts for the first",
        )
    ]


def _contenders(blend: Mapping[str, Any] | None) -> list[Html]:
    """Returns a table of what learn_blend could have chosen to rank the lists, as a list of one element.

    The list is empty if the model ranks the lists without a choice (score.blend=none, or no clicks to choose
    by).
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
    words = f"What could rank these lists, measured for {users} by clicks of the validation split"
    return [table(["Ranking", f"Hit rate @{k}", f"NDCG @{k}"], rows, words)]


def _measures(values: Mapping[str, Any]) -> list[Child]:
    """Returns the table cells with hit rate, NDCG and coverage."""
    return [
        numbers.percent(values.get("hit_rate")),
        numbers.decimal(values.get("ndcg")),
        numbers.percent(values.get("coverage")),
    ]
