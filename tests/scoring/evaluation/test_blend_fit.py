"""Learning a blend on arrays: the minimum, known weights, the choice of the contender, and figures by loops."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from scipy.optimize import minimize

from conf.load import load_config
from scoring.candidates import candidate_tables
from scoring.evaluation import blend_fit
from scoring.evaluation.blend_fit import (
    BLEND,
    FOLDS,
    L2,
    MODEL,
    MeasuredPairs,
    features,
    fit,
    learn,
)
from scoring.requests import BlendRequest
from storage.dataset import Member
from storage.run_context import RunContext

NAN = np.float32(np.nan)


def pairs_of(
    logits: list[Any], scores: list[Any], clicked: list[Any], positives: list[int] | None = None
) -> MeasuredPairs:
    """Pairs from one array per user; the items of a user are numbered in descending order."""
    lengths = [len(of_user) for of_user in logits]
    clicks = [int(np.sum(of_user)) for of_user in clicked]
    return MeasuredPairs(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.concatenate([np.arange(length)[::-1] for length in lengths]).astype(np.int32),
        np.concatenate(logits).astype(np.float32),
        np.concatenate(scores).astype(np.float32),
        np.concatenate(clicked).astype(bool),
        np.array(positives or np.maximum(clicks, 1)),
        np.arange(len(lengths)) % FOLDS,
    )


def drawn(users: int, sources: int, seed: int, weights: np.ndarray | None = None) -> MeasuredPairs:
    """Random logits and scores, a third of them missing; one click per user, by a softmax of the weights.

    Without weights, clicks do not depend on logits and scores.
    """
    draw = np.random.default_rng(seed)
    logits, scores, clicked = [], [], []
    for _ in range(users):
        length = int(draw.integers(8, 20))
        of_sources = draw.normal(size=(length, sources)) * 3
        of_sources[draw.random((length, sources)) < 1 / 3] = np.nan
        logit = draw.normal(size=length) * 2
        total = np.zeros(length)
        if weights is not None:
            total = weights[0] * logit + (np.nan_to_num(of_sources) * weights[1:]).sum(axis=1)
        clicked.append(np.arange(length) == np.argmax(total + draw.gumbel(size=length)))
        logits.append(logit)
        scores.append(of_sources)
    return pairs_of(logits, scores, clicked)


def ranking_score(request: BlendRequest, logit: float, scores: np.ndarray) -> float:
    """The documented score of one candidate."""
    parts = [
        absent if math.isnan(score) else weight * score
        for weight, absent, score in zip(request.weights, request.absent, scores, strict=True)
    ]
    return request.intercept + request.logit * logit + sum(parts)


def figures_by_loops(pairs: MeasuredPairs, scores: np.ndarray, k: int) -> tuple[float, float]:
    """HR@k and NDCG@k by sorting each user's candidates in Python."""
    hits, gains = [], []
    for user, positives in enumerate(pairs.positives):
        rows = range(pairs.starts[user], pairs.starts[user + 1])
        ranked = sorted(rows, key=lambda row: (-scores[row], pairs.items[row]))[:k]
        gain = sum(1 / math.log2(place + 2) for place, row in enumerate(ranked) if pairs.clicked[row])
        hits.append(gain > 0)
        gains.append(gain / sum(1 / math.log2(place + 2) for place in range(min(k, positives))))
    return float(np.mean(hits)), float(np.mean(gains))


def test_the_weights_are_the_minimum_of_the_documented_loss() -> None:
    pairs = drawn(60, 2, 1, np.array([0.5, 0.3, -0.2]))
    x, _ = features(pairs)
    of_users = np.arange(60) % 3 > 0
    counted = of_users[pairs.user] & (np.arange(len(pairs.items)) % 4 > 0)  # some clicks do not count

    def loss(w: np.ndarray) -> float:
        total = L2 / 2 * float(w @ w)
        for user in range(60):
            rows = np.flatnonzero(counted & (pairs.user == user))
            scores = x[rows] @ w
            if pairs.clicked[rows].any():
                total += math.log(np.exp(scores).sum()) - scores[pairs.clicked[rows]].mean()
        return total

    expected = minimize(loss, np.zeros(5), tol=1e-12, options={"gtol": 1e-7})
    actual = fit(x, pairs, counted)
    np.testing.assert_allclose(actual, expected.x, rtol=0, atol=1e-5)
    assert loss(actual) <= expected.fun + 1e-9


def test_weights_that_drew_the_clicks_are_found_again_and_their_blend_is_chosen() -> None:
    true = np.array([0.6, 0.4, -0.25, 0.0])
    learned = learn(drawn(6_000, 3, 2, true), ["a", "b", "c"], 5)
    assert learned.chosen == BLEND
    assert learned.request is not None
    np.testing.assert_allclose([learned.request.logit, *learned.request.weights], true, atol=0.03)
    np.testing.assert_allclose(learned.request.absent, 0, atol=0.12)
    best_alone = max(figures.ndcg for name, figures in learned.figures.items() if name != BLEND)
    assert learned.figures[BLEND].ndcg > best_alone + 0.05


def test_the_best_source_is_chosen_if_the_model_is_noise() -> None:
    """The source `good` ranks every click first. The blend cannot be better, so it is not chosen."""
    draw = np.random.default_rng(3)
    lengths = [12] * 40
    clicked = [np.arange(12) == draw.integers(12) for _ in lengths]
    good = [np.where(clicks, 2.0, draw.random(12)) for clicks in clicked]
    poor = [np.where(draw.random(12) < 0.5, np.nan, draw.normal(size=12)) for _ in lengths]
    scores = [np.stack(columns, axis=1) for columns in zip(poor, good, strict=True)]
    pairs = pairs_of([draw.normal(size=12) * 40 for _ in lengths], scores, clicked)
    learned = learn(pairs, ["poor", "good"], 4)
    assert learned.chosen == "good"
    assert learned.figures["good"].ndcg == 1
    assert learned.figures[MODEL].ndcg < 0.5
    assert learned.request is not None
    ranked = [ranking_score(learned.request, *pair) for pair in zip(pairs.logits, pairs.scores, strict=True)]
    assert figures_by_loops(pairs, np.array(ranked), 4) == (1.0, 1.0)


def test_a_source_ranks_what_it_proposed_before_the_rest_which_the_model_ranks() -> None:
    logits = [[0.0, 5.0, 1.0, 9.0, 2.0]] * 5
    scores = [np.array([[-1.0], [NAN], [-2.0], [NAN], [-3.0]])] * 5
    clicked = [[True, False, False, False, False]] * 5
    learned = learn(pairs_of(logits, scores, clicked), ["one"], 3)
    assert learned.chosen == "one"
    assert learned.request is not None
    ranked = [ranking_score(learned.request, *pair) for pair in zip(logits[0], scores[0], strict=True)]
    assert np.argsort(ranked)[::-1].tolist() == [0, 2, 4, 3, 1]


def test_the_model_alone_is_chosen_if_no_contender_is_better() -> None:
    pairs = drawn(50, 1, 4, np.array([1.0, 0.0]))
    copied = MeasuredPairs(**{**vars(pairs), "scores": pairs.logits[:, None]})
    learned = learn(copied, ["copy"], 5)
    assert (learned.chosen, learned.request) == (MODEL, None)
    assert len({figures.ndcg for figures in learned.figures.values()}) == 1
    assert list(learned.figures) == [MODEL, "copy", BLEND]


def test_users_are_measured_with_weights_of_the_other_folds() -> None:
    """With many sources of noise and few users, a blend of the measured users themselves looks best."""
    pairs = drawn(30, 14, 5)
    x, _ = features(pairs)
    of_all = x @ fit(x, pairs, np.ones(len(x), bool))
    learned = learn(pairs, [f"s{number}" for number in range(14)], 5)
    assert figures_by_loops(pairs, of_all, 5)[1] > learned.figures[MODEL].ndcg + 0.2
    assert learned.figures[BLEND].ndcg < learned.figures[MODEL].ndcg + 0.1
    held_out = np.empty(len(x))
    for fold in range(FOLDS):
        rows = pairs.folds[pairs.user] == fold
        held_out[rows] = x[rows] @ fit(x, pairs, (pairs.folds != fold)[pairs.user])
    expected = figures_by_loops(pairs, held_out, 5)
    assert (learned.figures[BLEND].hit_rate, learned.figures[BLEND].ndcg) == pytest.approx(expected)


def test_only_candidates_that_the_model_or_a_source_ranks_high_count() -> None:
    """With k = 1, these are the 10 best of each user; some of the others are clicked."""
    pairs = drawn(200, 1, 8)
    ranks = []
    for scores in (
        pairs.logits,
        np.where(np.isnan(pairs.scores[:, 0]), pairs.logits - 90, pairs.scores[:, 0]),
    ):
        by_user = [
            np.argsort(np.argsort(-scores[start:end]))
            for start, end in zip(pairs.starts[:-1], pairs.starts[1:], strict=True)
        ]
        ranks.append(np.concatenate(by_user))
    high = np.min(ranks, axis=0) < 10
    assert pairs.clicked[~high].any()
    x, scales = features(pairs)
    # The clicks of two users in three follow logit and score, so that the blend is chosen.
    total = pairs.logits + pairs.scores[:, 0]
    best = np.zeros(len(x), bool)
    for start, end in zip(pairs.starts[:-1], pairs.starts[1:], strict=True):
        best[start + np.nanargmax(total[start:end])] = True
    tilted = MeasuredPairs(**{**vars(pairs), "clicked": np.where(pairs.user % 3 > 0, best, pairs.clicked)})
    learned = learn(tilted, ["one"], 1)
    assert learned.chosen == BLEND
    assert learned.request is not None
    actual = [learned.request.logit, *learned.request.weights]
    np.testing.assert_allclose(actual, fit(x, tilted, high)[:2] / scales, atol=1e-9)
    assert not np.allclose(actual, fit(x, tilted, np.ones(len(x), bool))[:2] / scales, atol=1e-3)


def test_figures_equal_loops_for_ties_missing_candidates_and_several_clicks() -> None:
    """A user without candidates and a user whose click is not a candidate count as missed."""
    nothing = np.zeros((0, 1))
    logits = [[1.0, 1.0, 0.0, 1.0], [2.0, 1.0], [], [0.0, 1.0, 2.0, 3.0]]
    scores = [np.zeros((4, 1)), np.array([[NAN], [1.0]]), nothing, np.array([[1.0], [NAN], [NAN], [0.0]])]
    clicked = [[True, False, True, True], [False, False], [], [True, True, True, False]]
    pairs = pairs_of(logits, scores, clicked, [3, 1, 2, 5])
    for k in (1, 2, 3):
        learned = learn(pairs, ["one"], k)
        expected = figures_by_loops(pairs, pairs.logits, k)
        actual = learned.figures[MODEL]
        assert (actual.hit_rate, actual.ndcg) == pytest.approx(expected)


def test_the_sigmoids_of_the_scores_add_up_to_the_clicks() -> None:
    pairs = drawn(400, 2, 6, np.array([1.5, 1.0, 0.5]))
    learned = learn(pairs, ["a", "b"], 5)
    assert learned.request is not None
    scores = [ranking_score(learned.request, *pair) for pair in zip(pairs.logits, pairs.scores, strict=True)]
    assert (1 / (1 + np.exp(-np.array(scores)))).sum() == pytest.approx(400, abs=0.01)


def test_without_a_clicked_candidate_or_a_score_the_model_ranks() -> None:
    pairs = drawn(20, 2, 7)
    lost = MeasuredPairs(**{**vars(pairs), "clicked": np.zeros_like(pairs.clicked)})
    assert learn(lost, ["a", "b"], 5).chosen == MODEL
    silent = MeasuredPairs(**{**vars(pairs), "scores": np.full_like(pairs.scores, NAN)})
    learned = learn(silent, ["a", "b"], 5)
    assert learned.chosen in (MODEL, BLEND)
    assert all(np.isfinite(figures.ndcg) for figures in learned.figures.values())


@pytest.mark.parametrize(
    "zone, expected",
    [("UTC", "2026-01-09"), ("America/Los_Angeles", "2026-01-08"), ("Asia/Tokyo", "2026-01-10")],
)
def test_windows_end_on_the_local_day_of_the_last_train_row(
    monkeypatch: pytest.MonkeyPatch, zone: str, expected: str
) -> None:
    times = [datetime(2026, 1, 9, hour, 30, tzinfo=UTC) for hour in (3, 1)]
    if zone == "Asia/Tokyo":
        times.append(datetime(2026, 1, 9, 15, 0, tzinfo=UTC))
    times.append(datetime(2026, 2, 1, tzinfo=UTC))  # a wrong time, later than the run date
    events = pa.array([int(time.timestamp()) * 1_000_000 for time in times])
    rows = pa.table({"event_time": events, "label": pa.array([0.0] * len(times), pa.float32())})
    monkeypatch.setattr(candidate_tables, "candidate_rows", lambda *_: rows)
    config = SimpleNamespace(split=SimpleNamespace(by="fraction"), log=SimpleNamespace(time_zone=zone))
    context = SimpleNamespace(config=config, run_date="2026-01-12")
    assert blend_fit.counted_until(cast(Any, context), cast(Any, None)) == expected


@pytest.mark.parametrize(
    "splits, expected",
    [
        (["train"], "2026-01-09"),
        (["train", "validation"], "2026-01-08"),
        (["train", "validation", "test"], "2026-01-06"),
    ],
)
def test_windows_contain_as_many_days_with_rows_as_those_of_build_candidates(
    splits: list[str], expected: str
) -> None:
    # A window of build_candidates ends on the run date, some days after the last day of the splits it counts.
    config = load_config(
        "conf/datasets/generated.yaml",
        ["split.validation_days=1", "split.test_days=2", f"candidates.splits={json.dumps(splits)}"],
    )
    dataset = SimpleNamespace(
        splits={"train": [Member("2026-01-05", "", None), Member("2026-01-06", "", None)]}
    )
    context = RunContext("test", config, "2026-01-09")
    assert blend_fit.counted_until(context, cast(Any, dataset)) == expected
