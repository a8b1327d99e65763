"""Sampled protocols of benchmarks/lists.py: which items are drawn, how they are ranked, and our scores of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from benchmarks import list_samples
from benchmarks.list_ours import our_samples
from benchmarks.list_peers import _tuned
from benchmarks.list_samples import SAMPLES, best_samples, draw_samples, sampled_figures
from benchmarks.list_task import Task, make_task, popular_samples
from benchmarks.peers.ease import ease_weights
from scoring.model import context_features
from scoring.model.predictor import load_predictor
from scoring.ranking.pair_scorer import score_sample
from scoring.requests import ModelRequest
from storage.paths import LakePaths
from tests.benchmarks.test_lists import random_rows
from tests.scoring.reference_scores import ReferenceScores, make_reference, write_model
from tests.scoring.scoring_lake import RUN_DATE, WORKFLOW, EncodedContext, publish_lake, write_table
from training.registry.versions import ChampionDecision, record_decision

USERS, ITEMS = 700, 160


@pytest.fixture(scope="module")
def drawn_from() -> tuple[NDArray[np.int64], csr_matrix, NDArray[np.int64]]:
    """Test items, excluded items and choices of users; every tenth user has no test item."""
    draw = np.random.default_rng(4)
    test = draw.integers(0, ITEMS, USERS)
    test[::10] = -1
    rated = draw.random((USERS, ITEMS)) < 0.05
    rated[np.arange(USERS), test.clip(0)] = False
    return test, csr_matrix(rated.astype(float)), draw.permutation(ITEMS) * 10 + 1


@pytest.mark.parametrize("protocol", SAMPLES)
def test_samples_are_distinct_items_that_the_user_did_not_rate_and_the_test_item(
    protocol: str, drawn_from: Any
) -> None:
    test, excluded, chosen = drawn_from
    samples = draw_samples(protocol, test, excluded, chosen)
    assert samples.shape == (USERS, 1 + {"ncf": 99, "bert4rec": 100}[protocol])
    for user, row in enumerate(samples):
        if test[user] < 0:
            assert set(row) == {-1}
            continue
        assert len(set(row.tolist())) == len(row)
        assert row.tolist() == sorted(row)
        assert test[user] in row
        assert not excluded[user].toarray()[0, row].any()
    np.testing.assert_array_equal(draw_samples(protocol, test, excluded, chosen), samples)


def test_ncf_draws_uniformly_and_bert4rec_by_popularity(monkeypatch: pytest.MonkeyPatch) -> None:
    """One item of ten is drawn for each of 40,000 users; the standard error of a share is at most 0.0025."""
    monkeypatch.setattr(list_samples, "SAMPLES", {"ncf": 1, "bert4rec": 1})
    users, chosen = 40_000, np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 0])
    test, excluded = np.full(users, 9), csr_matrix(np.tile(np.arange(10) == 3, (users, 1)).astype(float))
    for protocol, weights in (("ncf", np.ones(10)), ("bert4rec", chosen.astype(float))):
        weights[[3, 9]] = 0
        samples = draw_samples(protocol, test, excluded, chosen)
        assert (samples[:, 1] == 9).all()
        shares = np.bincount(samples[:, 0], minlength=10) / users
        np.testing.assert_allclose(shares, weights / weights.sum(), atol=0.01)


def test_a_user_with_too_few_items_ranks_those_that_are_left() -> None:
    excluded = csr_matrix(np.array([[1.0, 1, 0, 0, 0], [0, 0, 0, 0, 0]]))
    chosen = np.array([4, 3, 2, 0, 1])
    by_popularity = draw_samples("bert4rec", np.array([4, -1]), excluded, chosen)
    assert by_popularity[0].tolist()[-2:] == [2, 4]
    assert set(by_popularity[0].tolist()[:-2]) == {-1}
    assert draw_samples("ncf", np.array([4, 0]), excluded, chosen)[0].tolist()[-3:] == [2, 3, 4]


def test_the_best_samples_are_the_sorted_scores_and_ties_are_ordered_by_item(drawn_from: Any) -> None:
    test, excluded, chosen = drawn_from
    samples = draw_samples("ncf", test, excluded, chosen)
    samples[3, :95] = -1
    scores = np.random.default_rng(5).integers(0, 30, (USERS, ITEMS)).astype(float)
    lists = best_samples(lambda users: scores[users], samples, 10)
    for user, row in enumerate(samples):
        items = sorted((item for item in row if item >= 0), key=lambda item: (-scores[user, item], item))[:10]
        assert lists[user].tolist() == items + [-1] * (10 - len(items))
    figures = sampled_figures({"ncf": [lists, lists[:, ::-1]]}, test)["ncf"]
    hits = [
        1 / np.log2(2 + place)
        for one in (lists, lists[:, ::-1])
        for user in np.flatnonzero(test >= 0)
        for place in np.flatnonzero(one[user] == test[user])
    ]
    assert figures["hit_rate"] == pytest.approx(len(hits) / 2 / (test >= 0).sum())
    assert figures["ndcg"] == pytest.approx(sum(hits) / 2 / (test >= 0).sum())


def test_peers_rank_the_same_samples_with_their_scores() -> None:
    task: Task = make_task(random_rows(2))
    peer = _tuned([10.0], lambda penalty: ease_weights(task.train, penalty), task, 10)
    scores = (task.history @ ease_weights(task.train, 10.0)).astype(float)
    popular = popular_samples(task, 10)
    for protocol, samples in task.samples.items():
        for user, row in enumerate(samples):
            of_user = scores[user] if task.history[user].nnz else task.chosen
            items = sorted((item for item in row if item >= 0), key=lambda item: (-of_user[item], item))[:10]
            expected = items + [-1] * (10 - len(items))
            assert peer.samples[protocol][0][user].tolist() == expected
            if not task.history[user].nnz:
                assert popular[protocol][user].tolist() == expected


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> ReferenceScores:
    return make_reference(tmp_path_factory.mktemp("reference"))


@pytest.mark.parametrize("architecture", ["logistic_regression", "two_tower"])
def test_our_samples_are_ranked_by_the_champions_probabilities(
    architecture: str, reference: ReferenceScores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy computes the probabilities, or the complete model from joined rows. A user and an item are unknown."""
    monkeypatch.setattr(context_features, "load_local", lambda *_: EncodedContext())
    config = publish_lake(tmp_path, reference)
    lake = LakePaths(config.lake)
    items = pd.read_parquet(list(reference.request.item_files))
    probabilities, champion = reference.probabilities, "m1"
    if architecture == "two_tower":
        champion = "t9"
        folder = Path(lake.models("toy")) / champion
        # With larger weights, float32 would round the probabilities of several items to 1.
        path = write_model(folder, "two_tower", version=champion, sign=0.5)
        request = ModelRequest(path, "cpu", None)
        rows = pa.Table.from_pandas(reference.users, preserve_index=False)
        joined = score_sample(
            load_predictor(request, None, 1), rows, replace(reference.request, model=request), len(items)
        )
        probabilities = joined.reshape(probabilities.shape)
    users = [*reference.users.user_key, "stranger"]
    keys = ["a new item", *reversed(items.item_key.tolist())]
    draw = np.random.default_rng(6)
    samples = np.sort([draw.permutation(len(keys))[:9] for _ in users], axis=1)
    samples[4, :3] = -1
    write_table(
        lake.candidate_items(WORKFLOW).partition(RUN_DATE), pa.Table.from_pandas(items, preserve_index=False)
    )
    decision = ChampionDecision(champion, None, True, champion, "the first model")
    record_decision(lake, "toy", RUN_DATE, decision)
    lists = our_samples(config, RUN_DATE, pd.Index(users), pd.Index(keys), {"ncf": samples}, 5)["ncf"]
    assert (lists[-1] == -1).all()
    for user, row in enumerate(samples[:-1]):
        score = {
            item: probabilities[user, items.item_key.tolist().index(keys[item])] for item in row if item > 0
        }
        expected = sorted(score, key=lambda item: -score[item])[:5]
        assert lists[user].tolist() == expected + [-1] * (5 - len(expected))
