"""Lists of any length from every architecture against pandas, and the memory that a worker needs for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from conf.types import ModelConfig
from scoring.ranking import recommender as module
from scoring.ranking.pair_scorer import JoinedRows, PairScorer, factorization_of
from scoring.ranking.pairs import side_of
from scoring.ranking.recommender import ListRanker
from scoring.ranking.top_k import NO_CANDIDATE
from scoring.requests import ListRequest, ModelRequest
from tests.scoring.ranking.test_recommender import batch_of, lists_of
from tests.scoring.reference_scores import (
    CONTEXT,
    SPEC,
    ReferenceScores,
    make_recommender,
    make_users,
    write_model,
)
from tests.training.architectures import VARIANTS, variant
from training.checkpoints import save_model
from training.models import build_model

MANY = 100_000
K = 8


class Whole(nn.Module):
    """A model without a factorization."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, dense: torch.Tensor, categorical: torch.Tensor) -> torch.Tensor:
        """The logits of the whole model."""
        return self.model(dense, categorical)


def save(folder: Path, config: ModelConfig) -> str:
    """Saves a model with random weights and returns its folder."""
    model = build_model(config, SPEC)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    description = {
        "version": "m1",
        "architecture": config.architecture,
        "model": config.model_dump(),
        "feature_spec": SPEC.to_json(),
    }
    save_model(str(folder), model, description)
    return str(folder)


@torch.inference_mode()
def joined_probabilities(recommender: ListRanker, users: pd.DataFrame, items: pd.DataFrame) -> np.ndarray:
    """(U, N) by the model's own pass over rows that pandas joined."""
    pairs = users.merge(items, how="cross").assign(**CONTEXT)
    dense = torch.tensor(pairs[[feature.name for feature in SPEC.dense]].to_numpy(np.float32))
    categorical = torch.tensor(pairs[[feature.name for feature in SPEC.categorical]].to_numpy(np.int64))
    logits = recommender.predictor.model(dense, categorical)
    return torch.sigmoid(logits).numpy().reshape(len(users), len(items))


def assert_close_lists(actual: pd.DataFrame, probabilities: np.ndarray, asked: list[list[int]]) -> None:
    """Scores within 1e-5, and items that only scores this close put in another order."""
    by_user = dict(list(actual.groupby("user_key")))
    for user, items in enumerate(asked):
        user_rows = by_user.pop(f"u{user:03d}", None)
        if not items:
            assert user_rows is None
            continue
        assert user_rows is not None
        assert user_rows.position.tolist() == list(range(1, min(K, len(items)) + 1))
        index = user_rows.item_key.str[1:].astype(int).to_numpy()
        assert len(set(index)) == len(index)
        assert set(index) <= set(items)
        np.testing.assert_allclose(user_rows.score, probabilities[user, index], atol=1e-5)
        best = np.sort(probabilities[user, items])[::-1][: len(index)]
        np.testing.assert_allclose(user_rows.score, best, atol=1e-5)
    assert not by_user


@pytest.mark.parametrize("name", VARIANTS)
def test_lists_of_every_architecture_equal_joined_rows(
    reference: ReferenceScores, tmp_path: Path, name: str
) -> None:
    path = save(tmp_path / "model", variant(name))
    request = replace(reference.request, model=ModelRequest(path, "cpu", 40), k=K)
    recommender = make_recommender(request)
    probabilities = joined_probabilities(recommender, reference.users, reference.items)
    draw = np.random.default_rng(4)
    sizes = [0, 1, 3, 9, 20, 23] * 6 + [12]
    candidates: list[list[int] | None] = [draw.permutation(23)[:size].tolist() for size in sizes]
    candidates[5] = candidates[6] = None
    excluded: list[list[int] | None] = [None] * 6 + [[2, 4, 17]] + [None] * 30
    asked = [
        [item for item in range(23) if item not in (gone or [])] if listed is None else listed
        for listed, gone in zip(candidates, excluded, strict=True)
    ]
    actual = lists_of(recommender, batch_of(reference.users, candidates, excluded))
    assert_close_lists(actual, probabilities, asked)
    assert probabilities.std() > 0.02


@pytest.fixture(scope="module")
def crowd(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[ListRequest, pd.DataFrame, pd.DataFrame, np.ndarray]:
    """100,000 items, many with equal features, 20 users, a logistic regression, and NumPy's probabilities."""
    folder = tmp_path_factory.mktemp("crowd")
    users = make_users(20)
    draw = np.random.default_rng(6)
    items = pd.DataFrame(
        {
            "item_index": np.arange(MANY, dtype=np.int32),
            "item_key": [f"i{index:06d}" for index in range(MANY)],
            "what": draw.integers(3, 40, MANY).astype(np.int32),
            "kind": draw.integers(3, 7, MANY).astype(np.int32),
            "price": (draw.integers(-8, 9, MANY) / 8).astype(np.float32),
        }
    )
    path = str(folder / "items.parquet")
    pq.write_table(pa.Table.from_pandas(items, preserve_index=False), path)
    request = ListRequest(
        ModelRequest(write_model(folder / "model"), "cpu", None), (path,), tuple(CONTEXT.items()), 50
    )
    recommender = make_recommender(request)
    kinds, place = np.unique(
        items[["what", "kind", "price"]].to_numpy(np.float32), axis=0, return_inverse=True
    )
    distinct = pd.DataFrame(kinds, columns=["what", "kind", "price"])
    return request, users, items, joined_probabilities(recommender, users, distinct)[:, place.ravel()]


def test_lists_of_0_1_and_100_000_with_ties_equal_pandas(crowd: Any) -> None:
    request, users, _, probabilities = crowd
    recommender = make_recommender(request)
    draw = np.random.default_rng(9)
    everything = draw.permutation(MANY).tolist()
    half = sorted(draw.choice(MANY, MANY // 2, replace=False).tolist())
    candidates: list[list[int] | None] = [everything, [], [77], half, None, None, [5, 3], half[::-1]] + [
        None
    ] * 12
    gone = draw.choice(MANY, 1_000, replace=False).tolist()
    excluded: list[list[int] | None] = [None] * 5 + [gone] + [None] * 14
    actual = lists_of(recommender, batch_of(users, candidates, excluded))
    for user, listed in enumerate(candidates):
        left = np.arange(MANY) if listed is None else np.sort(np.array(listed, dtype=int))
        if excluded[user]:
            left = np.setdiff1d(left, gone)
        user_rows = actual[actual.user_key == f"u{user:03d}"]
        frame = pd.DataFrame({"item": left, "score": probabilities[user, left]})
        ranked = frame.sort_values("score", ascending=False, kind="stable").head(50)
        np.testing.assert_allclose(user_rows.score, ranked.score, atol=1e-6)
        # Equal features have equal scores: in the order of their keys, each item of a score before those that
        # were cut off.
        index = user_rows.item_key.str[1:].astype(int).to_numpy()
        assert (np.diff(index)[np.diff(user_rows.score.to_numpy()) == 0] > 0).all()
        scores = dict(zip(left, probabilities[user, left], strict=True))
        assert [scores[item] for item in index] == pytest.approx(ranked.score.tolist(), abs=1e-6)
        if len(left) > 50:
            last = index[-1]
            equal = left[np.abs(probabilities[user, left] - scores[last]) < 1e-7]
            assert set(equal[equal < last]) <= set(index)
    assert len(actual) == 0 + 1 + 2 + 17 * 50


def test_what_is_held_grows_neither_with_users_nor_with_candidates(
    crowd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, users, _, _ = crowd
    recommender = make_recommender(request)
    held: list[int] = []
    for name in ("consecutive_logits", "list_logits"):
        whole = getattr(PairScorer, name)

        def watched(self: PairScorer, *arguments: Any, _whole: Any = whole) -> torch.Tensor:
            scores = _whole(self, *arguments)
            held.append(scores.numel())
            return scores

        monkeypatch.setattr(PairScorer, name, watched)
    monkeypatch.setattr(module, "_MIN_PLACES", 20_000)
    draw = np.random.default_rng(2)
    long = draw.permutation(MANY)[: MANY // 2].tolist()
    most = {}
    for count in (20, 60):
        more = pd.concat([users] * (count // 20), ignore_index=True)
        lists_of(recommender, batch_of(more, [long if user % 2 else None for user in range(count)]))
        most[count], held[:] = max(held), []
    assert max(most.values()) <= 20_000 * 1.125


def test_equal_items_have_equal_logits_in_a_short_last_block(
    reference: ReferenceScores, tmp_path: Path
) -> None:
    path = save(tmp_path / "model", variant("dlrm"))
    recommender = make_recommender(replace(reference.request, model=ModelRequest(path, "cpu", 64)))
    items = recommender.items.side.rows(torch.zeros(300, dtype=torch.int64))
    scorer = PairScorer(recommender.predictor, items)
    users = side_of(pa.Table.from_pandas(reference.users), SPEC, recommender.predictor.multi_hot, "user")
    parts = scorer.user_parts(users)
    every = scorer.consecutive_logits(parts, slice(0, 300))
    assert (every == every[:, :1]).all()
    for start in (200, 240, 299):  # fewer than 64 items are left after 240
        assert torch.equal(scorer.consecutive_logits(parts, slice(start, 300)), every[:, start:])


def test_a_model_without_a_factorization_is_scored_on_joined_rows(
    reference: ReferenceScores, tmp_path: Path
) -> None:
    path = save(tmp_path / "model", variant("dlrm"))
    request = replace(reference.request, model=ModelRequest(path, "cpu", 64), k=K)
    split = make_recommender(request)
    users = batch_of(reference.users, [None, [3, 9, 1], [], [0]] * 9 + [None])
    expected = lists_of(split, users)
    predictor = replace(split.predictor, model=Whole(split.predictor.model))
    assert isinstance(factorization_of(predictor), JoinedRows)
    whole = ListRanker.of(predictor, split.items, K)
    actual = lists_of(whole, users)
    assert actual[["user_key", "position"]].equals(expected[["user_key", "position"]])
    np.testing.assert_allclose(actual.score, expected.score, atol=1e-5)
    assert (actual.item_key == expected.item_key).mean() > 0.95


@pytest.mark.parametrize("name", ["dlrm", "wide_and_deep", "dcn_v2_parallel"])
def test_items_that_do_not_fit_in_memory_are_computed_when_they_are_met(
    reference: ReferenceScores, tmp_path: Path, name: str
) -> None:
    path = save(tmp_path / "model", variant(name))
    request = replace(reference.request, model=ModelRequest(path, "cpu", 64), k=K)
    kept = make_recommender(request)
    pair_scorer = PairScorer(kept.predictor, kept.items.side, kept_bytes=0)
    passing = replace(kept, list_scorer=replace(kept.list_scorer, pair_scorer=pair_scorer))
    assert kept.list_scorer.pair_scorer.keeps_items
    assert not pair_scorer.keeps_items
    users = batch_of(reference.users, [None, [3, 9, 1], [], [0]] * 9 + [None])
    expected, actual = lists_of(kept, users), lists_of(passing, users)
    np.testing.assert_allclose(actual.score, expected.score, atol=1e-6)
    assert (actual.item_key == expected.item_key).mean() > 0.95


@pytest.mark.parametrize("precision, bound", [("bf16", 2e-2), ("fp16", 2e-3)])
def test_half_precision_changes_scores_little_and_is_not_ignored(
    reference: ReferenceScores, tmp_path: Path, precision: Any, bound: float
) -> None:
    path = save(tmp_path / "model", variant("dlrm"))
    request = replace(reference.request, model=ModelRequest(path, "cpu", 64), k=23)
    full = lists_of(make_recommender(request), batch_of(reference.users))
    halved = replace(request, model=replace(request.model, precision=precision))
    half = lists_of(make_recommender(halved), batch_of(reference.users))
    both = full.merge(half, on=["user_key", "item_key"], validate="one_to_one")
    assert len(both) == 37 * 23
    error = (both.score_x - both.score_y).abs().max()
    assert 0 < error < bound


def test_the_ranked_keys_that_a_list_is_chosen_from_hold_the_best_of_each_user(
    reference: ReferenceScores,
) -> None:
    recommender = make_recommender(reference.request)
    users = batch_of(reference.users, [[], [3], None, *([[1, 2]] * 34)])
    seen: list[torch.Tensor] = []

    class Watched(ListRanker):
        def _best(self, keys: torch.Tensor, users: pa.Array) -> pa.RecordBatch:
            seen.append(keys)
            return super()._best(keys, users)

    lists_of(Watched(recommender.predictor, recommender.items, 5, recommender.list_scorer), users)
    keys = torch.cat(seen)
    assert keys.shape == (37, 5)
    assert (keys != NO_CANDIDATE).sum(dim=1).tolist() == [0, 1, 5, *([2] * 34)]
    assert (keys[:, 1:] <= keys[:, :-1]).all()
