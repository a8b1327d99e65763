"""How the lists of both models decide at the gate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.types import Gate
from metrics.bootstrap import Interval
from scoring.evaluation.gate import ChallengerComparison, ModelFigures, Verdict, decide
from scoring.evaluation.gate_lists import ListFigures, ListMeasurement
from scoring.evaluation.gate_run import ListComparison, compare_lists, list_checks

CHALLENGER, CHAMPION = ModelFigures(0.80, 0.4, 1.0), ModelFigures(0.75, 0.4, 1.0)
SMALL = st.floats(-0.2, 0.2)


def comparison(low: float | None, high: float = 0.0, users: int = 500) -> ListComparison:
    """Lists of `users` users whose NDCG differs by an interval; `low` None stands for no interval."""
    ours, theirs = ListFigures(80, 0.31, 0.2), ListFigures(80, 0.3, 0.25)
    intervals = {"hit_rate": Interval(0.01, -0.4, 0.4, 0.95, 1000)}
    if low is not None:
        intervals["ndcg"] = Interval(-0.05, low, high, 0.95, 1000)
    return ListComparison(ListMeasurement(10, users), ours, theirs, intervals)


def verdict(lists: ListComparison, **gate: Any) -> Verdict:
    """The verdict on a challenger with a better AUC."""
    settings = Gate(**gate)
    better = ChallengerComparison(CHAMPION, Interval(0.05, 0.04, 0.06, 0.95, 1000), None, 60_000, 4_000)
    return decide(settings, CHALLENGER, better, list_checks(settings, lists))


def levels(decision: Verdict) -> dict[str, str]:
    """The level of each check of lists."""
    return {check.name: check.level for check in decision.checks if check.name.startswith("list")}


def test_a_better_auc_does_not_promote_a_model_with_worse_lists() -> None:
    decision = verdict(comparison(-0.08, -0.03))
    assert not decision.promoted
    assert decision.reason == (
        "AUC 0.8000 against the champion's 0.7500 (+0.0500, 95% from +0.0400 to +0.0600): "
        "not worse by more than gate.margin=0.002; "
        "NDCG@10 of lists 0.2000 against the champion's 0.2500 (-0.0500, 95% from -0.0800 to -0.0300): "
        "worse by more than gate.lists_margin=0.02"
    )


@settings(deadline=None)
@given(SMALL, SMALL, st.floats(0, 0.1))
def test_the_lower_end_of_the_interval_decides(one: float, other: float, margin: float) -> None:
    low, high = sorted((one, other))
    decision = verdict(comparison(low, high), lists_margin=margin)
    assert decision.promoted is (low >= -margin)
    assert levels(decision) == {"list_ndcg": "ok" if low >= -margin else "hold", "list_hit_rate": "ok"}


@settings(deadline=None)
@given(SMALL, SMALL, st.integers(1, 1_000))
def test_without_a_margin_lists_are_shown_but_do_not_decide(one: float, other: float, users: int) -> None:
    low, high = sorted((one, other))
    decision = verdict(comparison(low, high, users), lists_margin=None)
    assert decision.promoted
    assert levels(decision) == {"list_ndcg": "ok", "list_hit_rate": "ok"}
    assert f"95% from {low:+.4f} to {high:+.4f}" in decision.checks[-2].message


@settings(deadline=None)
@given(SMALL, st.integers(1, 99), st.booleans())
def test_few_users_warn_and_do_not_decide(low: float, users: int, known: bool) -> None:
    decision = verdict(comparison(low if known else None, 0.2, users), min_users=100)
    assert decision.promoted
    assert levels(decision)["list_ndcg"] == "warn"
    few = "1 user is" if users == 1 else f"{users} users are"
    assert f"{few} too few to decide on (gate.min_users=100)" in decision.checks[-2].message


@pytest.mark.parametrize("users, level", [(500, "hold"), (499, "warn")])
def test_min_users_above_lists_users_does_not_switch_the_check_off(users: int, level: str) -> None:
    decision = verdict(comparison(-0.08, -0.03, users), min_users=2_000, lists_users=500)
    assert decision.promoted is (level == "warn")
    assert levels(decision)["list_ndcg"] == level
    few = "499 users are too few to decide on (gate.lists_users=500)"
    assert (few in decision.checks[-2].message) is (level == "warn")


def test_enough_users_without_an_interval_keep_the_champion() -> None:
    decision = verdict(comparison(None))
    assert not decision.promoted
    assert "NDCG@10 of lists 0.2000 against the champion's 0.2500 (-0.0500; no interval: too few users" in (
        decision.reason
    )


def test_a_wide_interval_says_how_to_narrow_it() -> None:
    decision = verdict(comparison(-0.05, 0.05))
    assert decision.reason.endswith("measure more users (gate.lists_users) or raise gate.lists_margin")


@pytest.mark.parametrize("level", ["ok", "warn"])
def test_lists_that_cannot_be_made_do_not_decide_but_say_why(level: Any) -> None:
    skipped = ListMeasurement(10, skipped="the log has no users and items (section `keys`)", level=level)
    decision = verdict(compare_lists(0.95, skipped, "new", "old"))
    assert decision.promoted
    assert levels(decision) == {"list_ndcg": level}
    message = "lists were not compared: the log has no users and items (section `keys`)"
    assert decision.checks[-1].message == message


def test_the_lists_of_a_first_model_are_measured_but_not_compared() -> None:
    figures = ListFigures(80, 0.31, 0.2)
    first = compare_lists(0.95, ListMeasurement(10, 500, {"new": figures}), "new", None)
    assert list_checks(Gate(), first) == []
    assert first.to_facts() == {
        "k": 10,
        "users": 500,
        "skipped": None,
        "challenger": {"items": 80, "hit_rate": 0.31, "ndcg": 0.2},
        "champion": None,
    }
    assert first.interval_facts() == {}


def test_differences_are_challenger_minus_champion() -> None:
    draw = np.random.default_rng(0)
    models = {
        name: ListFigures(
            80, rate, rate / 2, {key: draw.normal(rate, 0.01, 400) for key in ("hit_rate", "ndcg")}
        )
        for name, rate in (("new", 0.4), ("old", 0.6))
    }
    between = compare_lists(0.9, ListMeasurement(10, 500, models), "new", "old").interval_facts()
    assert between["hit_rate"]["difference"] == pytest.approx(-0.2)
    assert between["ndcg"]["difference"] == pytest.approx(-0.1)
    expected = np.quantile(models["new"].replicates["ndcg"] - models["old"].replicates["ndcg"], [0.05, 0.95])
    assert [between["ndcg"]["low"], between["ndcg"]["high"]] == pytest.approx(expected)
