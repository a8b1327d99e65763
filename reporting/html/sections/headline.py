"""The head of the page: which model serves and why, and the key figures."""

from __future__ import annotations

from conf.errors import meaning_of
from conf.messages import counted
from reporting.elements import numbers
from reporting.elements.markup import Child, Html, join, tag
from reporting.facts.recent_runs import Failure
from reporting.facts.run_facts import RunFacts, logistic_regression
from reporting.monitoring.run_record import NO_REMEDY


def render(run: RunFacts, failure: Failure | None = None, served: str | None = None) -> Html:
    """Returns the head of the page: title, failure, decision and key figures.

    Args:
        run: the results of the run.
        failure: the failure that stopped the run; None if no stage has failed.
        served: which lists are served after the failure; None if the run makes no lists.


    A key figure without a value has no tile, for example because a job has not run yet.
    """
    return tag(
        "header",
        tag("p", f"Nightrank · {run.name}", class_="overline"),
        tag("h1", f"Run of {run.run_date}"),
        _failure(run, failure, served) if failure else None,
        _decision(run, failure),
        tag("div", *_tiles(run), class_="tiles"),
    )


def _failure(run: RunFacts, failure: Failure, served: str | None) -> Html:
    """Returns an element with the error that stopped the run, the remedy, and the lists that are served."""
    date = "" if failure.dt == run.run_date else f" for {failure.dt}"
    ended = failure.ended_at.replace("T", " ").removesuffix("Z")
    return tag(
        "div",
        tag(
            "p",
            tag("strong", tag("code", failure.job), f"{date} failed", class_="stop"),
            f" at {ended} UTC with exit code {failure.exit_code} ({meaning_of(failure.exit_code)}).",
        ),
        tag("pre", failure.problem or "The job has not recorded an error."),
        tag("p", tag("strong", "What to do: "), failure.remedy or NO_REMEDY),
        tag("p", f"Served lists: {served}.") if served else None,
        class_="failure",
        role="alert",
    )


def _decision(run: RunFacts, failure: Failure | None) -> Html | None:
    """Returns a sentence: the gate's decision, or which model made the lists, or which jobs have not run.

    Returns None if the run failed before the decision and the lists.
    """
    if run.evaluation is not None:
        decision = tag(
            "strong",
            "promoted" if run.promoted else "not promoted",
            class_="good" if run.promoted else "warn",
        )
        version = run.evaluation["challenger"]["version"]
        return tag(
            "p",
            "The model of this run, ",
            tag("code", version),
            ", was ",
            decision,
            f": {run.evaluation['reason']}.",
            *_refit(run),
            class_="lead",
        )
    if run.recommendations is not None:
        version = run.recommendations.facts.get("model_version")
        return tag(
            "p",
            "No model was trained in this run; ",
            tag("code", version),
            " made the lists.",
            *_refit(run),
            class_="lead",
        )
    if failure is not None:
        return None
    return tag(
        "p",
        "Neither ",
        tag("code", "evaluate_model"),
        " nor ",
        tag("code", "score_daily"),
        " has run.",
        class_="lead",
    )


def _refit(run: RunFacts) -> list[Child]:
    """Returns a sentence about the refit that made the lists; empty if a champion made them."""
    facts = run.recommendations.facts if run.recommendations else {}
    if not facts.get("refit_of"):
        return []
    version, champion = tag("code", facts["model_version"]), tag("code", facts["refit_of"])
    return [" The lists are from ", version, ", the refit of ", champion, " on the rows of all three splits."]


def _tiles(run: RunFacts) -> list[Html]:
    """Returns the tiles with the key figures of the run. A figure without a value has no tile."""
    tiles = [_quality(run), _baseline(run), _hit_rate(run), _served(run), _coverage(run)]
    return [tile for tile in tiles if tile is not None]


def _quality(run: RunFacts) -> Html | None:
    """Returns the tile with the AUC of the model that serves."""
    if run.evaluation is None or run.judged is None or run.judged.get("unmeasured"):
        return None
    auc, best = run.judged["auc"], run.evaluation.get("best_auc")
    reached = numbers.share_reached(auc, best)
    if reached is None:
        note = (
            "on the test rows: chosen items against random items" if run.per_positive else "on the test rows"
        )
        entropy = run.judged.get("normalized_entropy")
        if run.judged_scores != "ranking" and entropy is not None:
            note += f"; normalised entropy {numbers.decimal(entropy)}"
        return _tile("Model AUC", numbers.decimal(auc), note)
    note = (
        f"{numbers.percent(reached)} of the way from guessing to the best possible AUC of the log, "
        f"{numbers.decimal(best)}"
    )
    return _tile("Model AUC", numbers.decimal(auc), note, meter=reached)


def _baseline(run: RunFacts) -> Html | None:
    """Returns the tile with the AUC of logistic regression."""
    name, baseline = "Logistic AUC", logistic_regression(run.evaluation)
    if run.evaluation is None or baseline is None:
        return None
    reached = numbers.share_reached(baseline["auc"], run.evaluation.get("best_auc"))
    note = "logistic regression on the same features"
    if reached is not None:
        note += f": {numbers.percent(reached)} of the way"
    return _tile(name, numbers.decimal(baseline["auc"]), note, meter=reached)


def _hit_rate(run: RunFacts) -> Html | None:
    """Returns the tile with the hit rate of the lists."""
    if run.measure is None or run.measure.values.get("unmeasured"):
        return None
    values = run.measure.values
    popular = numbers.percent(values["popular"]["hit_rate"])
    when = "" if run.measure.dt == run.run_date else f"; lists of {run.measure.dt}"
    note = f"{numbers.times(values['lift'])} that of the most popular items, {popular}{when}"
    share = (values.get("truth") or {}).get("share_of_best")
    if share is not None:
        note += f"; {numbers.percent(share)} of the best possible hit rate of the log"
    return _tile(f"Hit rate @{values['k']}", numbers.percent(values["hit_rate"]), note, meter=share)


def _served(run: RunFacts) -> Html | None:
    """Returns the tile with the number of users with a list."""
    if run.recommendations is None:
        return None
    facts = run.recommendations.facts
    fewer = facts.get("users_with_fewer", 0)
    note = f"{counted(facts['k'], 'item')} each"
    note += f", but fewer for {counted(fewer, 'user')}" if fewer else ""
    return _tile("Users served", numbers.count(facts["users"]), note)


def _coverage(run: RunFacts) -> Html | None:
    """Returns the tile with the coverage of the lists: the share of items that are in at least one list."""
    if run.recommendations is None:
        return None
    facts = run.recommendations.facts
    recommended = numbers.count(facts["items_recommended"])
    verb = "is" if facts["items_recommended"] == 1 else "are"
    note = f"{recommended} of {counted(facts['items'], 'item')} {verb} in a list"
    return _tile("Item coverage", numbers.percent(facts["coverage"]), note, meter=facts["coverage"])


def _tile(name: str, value: str, note: Child, meter: float | None = None) -> Html:
    """Returns the tile of a key figure. The share `meter`, if it is set, is drawn as a bar."""
    bar = None
    if meter is not None:
        share = min(max(meter, 0.0), 1.0)
        bar = tag("div", tag("i", style=f"width:{100 * share:.1f}%"), class_="meter", aria_hidden="true")
    parts = [tag("h3", name), tag("p", value, class_="value"), bar, tag("p", note, class_="note")]
    return tag("div", join(parts), class_="tile")
