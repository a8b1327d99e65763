"""Lists that a blend ranks, against NumPy: any block size, rules, long lists, missing scores, wrong lengths."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from conf.errors import DataError
from scoring.model.predictor import load_predictor
from scoring.ranking import recommender as module
from scoring.ranking.recommender import CandidateLogits, ListRanker
from scoring.requests import BlendRequest
from scoring.rules.request import rules_request
from tests.scoring.ranking.test_recommender import batch_of, lists_of
from tests.scoring.reference_scores import ReferenceScores, make_recommender
from tests.scoring.rules.oracle import PlainRules, list_of
from tests.scoring.rules.test_rules import RUN_DATE, boost, cap, explore, rules_of, write_shelves

BLEND = BlendRequest(-1.5, 0.7, (0.9, -0.4), (-0.3, 0.6))
K = 5
SIZES = [0, 1, 3, 6, 12, 23]


def candidates_of(users: int, seed: int = 8) -> tuple[list[list[int]], list[np.ndarray]]:
    """Lists of candidates, and the scores (length, 2) of two sources; NaN where a source is silent."""
    draw = np.random.default_rng(seed)
    lists = [draw.permutation(23)[: SIZES[user % len(SIZES)]].tolist() for user in range(users)]
    scores = [draw.normal(size=(len(listed), 2)).astype(np.float32) for listed in lists]
    for of_user in scores:
        of_user[draw.random(of_user.shape) < 0.4] = np.nan
    return lists, scores


def with_scores(batch: pa.RecordBatch, scores: list[np.ndarray]) -> pa.RecordBatch:
    """The batch with the column source_scores."""
    column = pa.array([of_user.ravel().tolist() for of_user in scores], pa.list_(pa.float32()))
    table = pa.Table.from_batches([batch]).append_column("source_scores", column)
    return table.combine_chunks().to_batches()[0]


def blended(reference: ReferenceScores, user: int, item: int, scores: np.ndarray) -> float:
    """The documented score, as a number from 0 to 1."""
    probability = reference.probabilities[user, item]
    total = BLEND.intercept + BLEND.logit * math.log(probability / (1 - probability))
    for score, weight, absent in zip(scores, BLEND.weights, BLEND.absent, strict=True):
        total += absent if math.isnan(score) else weight * float(score)
    return 1 / (1 + math.exp(-total))


def recommender_of(reference: ReferenceScores, **changes: Any) -> ListRanker:
    """A recommender with the blend."""
    return make_recommender(replace(reference.request, k=K, blend=BLEND, **changes))


@pytest.mark.parametrize("most_users, places", [(1, 1), (7, 40), (1_024, 131_072)])
def test_lists_equal_numpy_whatever_the_blocks(
    reference: ReferenceScores, monkeypatch: pytest.MonkeyPatch, most_users: int, places: int
) -> None:
    """Also for lists of all items, which are scored in another way without a blend."""
    monkeypatch.setattr(module, "_LEAST_USERS", 1)
    monkeypatch.setattr(module, "_MOST_USERS", most_users)
    monkeypatch.setattr(module, "_MIN_PLACES", places)
    lists, scores = candidates_of(len(reference.users))
    recommender = recommender_of(reference)
    actual = lists_of(recommender, with_scores(batch_of(reference.users, candidates=list(lists)), scores))
    expected = []
    for user, (listed, of_user) in enumerate(zip(lists, scores, strict=True)):
        ranked = [
            (blended(reference, user, item, score), item) for item, score in zip(listed, of_user, strict=True)
        ]
        ranked.sort(key=lambda entry: (-entry[0], entry[1]))
        key = reference.users.user_key[user]
        expected += [
            (key, place + 1, reference.items.item_key[item], score)
            for place, (score, item) in enumerate(ranked[:K])
        ]
    frame = pd.DataFrame(expected, columns=["user_key", "position", "item_key", "score"])
    columns = ["user_key", "position", "item_key"]
    assert actual[columns].to_numpy().tolist() == frame[columns].to_numpy().tolist()
    np.testing.assert_allclose(actual.score, frame.score, atol=1e-6)


@pytest.mark.parametrize("name", ["cap", "boost", "all"])
def test_rules_apply_to_the_scores_of_the_blend(
    reference: ReferenceScores, tmp_path: Path, name: str
) -> None:
    """A boost multiplies the score of the blend; lists show the score without the boost."""
    shelves = write_shelves(tmp_path, reference)
    settings, plain = {
        "cap": (cap(2), PlainRules(most=2)),
        "boost": (boost(blue=3.0, red=0.25), PlainRules(boosts={"blue": 3.0, "red": 0.25})),
        "all": (
            {**boost(red=4.0), **cap(2), **explore(0.4)},
            PlainRules(boosts={"red": 4.0}, most=2, explore=2, salt=f"3|{RUN_DATE}"),
        ),
    }[name]
    plain = replace(plain, values=shelves, categories=shelves)
    recommender = recommender_of(
        reference, rules=rules_request(rules_of(tmp_path, **settings), K, RUN_DATE, {})
    )
    lists, scores = candidates_of(len(reference.users))
    actual = lists_of(recommender, with_scores(batch_of(reference.users, candidates=list(lists)), scores))
    by_user = dict(iter(actual.groupby("user_key", sort=False)))
    for user, (listed, of_user) in enumerate(zip(lists, scores, strict=True)):
        scored = [
            (reference.items.item_key[item], blended(reference, user, item, score))
            for item, score in zip(listed, of_user, strict=True)
        ]
        key = reference.users.user_key[user]
        expected = list_of(plain, key, scored, K)
        rows = by_user.get(key, actual.iloc[:0])
        assert list(zip(rows.item_key, rows.reason, strict=True)) == expected
        shown = dict(scored)
        np.testing.assert_allclose(rows.score, [shown[item] for item, _ in expected], atol=1e-6)


def test_measured_candidates_have_the_logits_and_scores_of_numpy(reference: ReferenceScores) -> None:
    lists, scores = candidates_of(len(reference.users), seed=3)
    clicked = [[*listed[:2], -1] for listed in lists]
    table = pa.Table.from_batches(
        [with_scores(batch_of(reference.users, candidates=list(lists)), scores)]
    ).append_column("positives", pa.array(clicked, pa.list_(pa.int32())))
    scorer = CandidateLogits(reference.request, load_predictor(reference.request.model, None, 1))
    rows = scorer.measure(table.combine_chunks().to_batches()[0], 2).to_pylist()
    assert [row["user_key"] for row in rows] == reference.users.user_key.tolist()
    for user, row in enumerate(rows):
        assert np.frombuffer(row["items"], np.int32).tolist() == lists[user]
        probability = reference.probabilities[user, lists[user]]
        logits = np.frombuffer(row["logits"], np.float32)
        np.testing.assert_allclose(logits, np.log(probability / (1 - probability)), atol=1e-5)
        of_user = np.frombuffer(row["scores"], np.float32).reshape(-1, 2)
        np.testing.assert_array_equal(of_user, scores[user])
        wanted = [item in clicked[user] for item in lists[user]]
        assert np.frombuffer(row["clicked"], np.bool_).tolist() == wanted
        assert row["positives"] == len(clicked[user])


def test_lists_without_the_right_number_of_scores_are_refused_by_user(reference: ReferenceScores) -> None:
    recommender = recommender_of(reference)
    lists, scores = candidates_of(len(reference.users))
    short = [*scores[:4], scores[4][:-1], *scores[5:]]
    batch = batch_of(reference.users, candidates=list(lists))
    with pytest.raises(
        DataError, match=r"user u004 has 12 candidates and 22 scores, but needs 2 scores for each candidate"
    ):
        list(recommender.recommend(with_scores(batch, short)))
    everything = with_scores(batch_of(reference.users), scores)
    with pytest.raises(DataError, match=r"user u000 has -1 candidates"):
        list(recommender.recommend(everything))
