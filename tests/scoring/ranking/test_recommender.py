"""Top-k lists of a few users and items against NumPy and pandas, without Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from conf.errors import ConfigError, DataError
from scoring.model.predictor import MicroBatch, load_predictor
from scoring.ranking import recommender as module
from scoring.ranking.pairs import blocks, read_items
from scoring.ranking.recommender import ListRanker, load_recommender
from scoring.requests import ModelRequest
from tests.scoring.reference_scores import CONTEXT, SPEC, ReferenceScores, make_recommender, write_model

LIST = pa.list_(pa.int32())


def batch_of(
    users: pd.DataFrame,
    candidates: list[list[int] | None] | None = None,
    excluded: list[list[int] | None] | None = None,
) -> pa.RecordBatch:
    """A batch of users with candidates and excluded items."""
    table = pa.Table.from_pandas(users, preserve_index=False)
    nothing = [None] * len(users)
    table = table.append_column("candidates", pa.array(candidates or nothing, LIST))
    return (
        table.append_column("excluded", pa.array(excluded or nothing, LIST)).combine_chunks().to_batches()[0]
    )


def lists_of(recommender: ListRanker, *batches: pa.RecordBatch) -> pd.DataFrame:
    """The lists of some batches, with the columns of ReferenceScores.expected."""
    actual = [lists.to_pandas() for batch in batches for lists in recommender.recommend(batch)]
    frame = (
        pd.concat(actual, ignore_index=True)
        if actual
        else pd.DataFrame(columns=["user_id", "position", "item_id", "score"])
    )
    return frame.rename(columns={"user_id": "user_key", "item_id": "item_key"})


def assert_same_lists(actual: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Checks items and positions for equality, and scores up to rounding."""
    keys = ["user_key", "position", "item_key"]
    assert actual[keys].values.tolist() == expected[keys].values.tolist()
    np.testing.assert_allclose(actual.score, expected.score, atol=1e-6)


@pytest.fixture
def recommender(reference: ReferenceScores) -> ListRanker:
    """A recommender of the 5 best items."""
    return make_recommender(reference.request)


def test_every_item_scored_equals_numpy(reference: ReferenceScores, recommender: ListRanker) -> None:
    assert_same_lists(lists_of(recommender, batch_of(reference.users)), reference.expected(5))


def test_ties_go_to_the_lower_item_key(reference: ReferenceScores) -> None:
    everything = make_recommender(replace(reference.request, k=23))
    actual = lists_of(everything, batch_of(reference.users))
    place = {key: list(user_rows.item_key) for key, user_rows in actual.groupby("user_key")}
    for keys in place.values():
        first = keys.index("i004")
        assert keys[first : first + 3] == ["i004", "i005", "i011"]


def shifted(reference: ReferenceScores, shift: float, **changes: Any) -> ListRanker:
    """A recommender whose model adds a constant to each logit."""
    request = replace(reference.request, **changes)
    predictor = load_predictor(request.model, None, 1)
    with torch.no_grad():
        predictor.model.bias.add_(shift)
    return load_recommender(request, predictor)


@pytest.mark.parametrize("listed", [False, True], ids=["all items", "lists"])
@pytest.mark.parametrize("shift", [14.0, 18.0, -110.0])
def test_a_constant_in_all_logits_changes_no_order(
    reference: ReferenceScores, shift: float, listed: bool
) -> None:
    """Losses such as softmax do not limit the constant, and float32 cannot distinguish these sigmoids."""
    draw = np.random.default_rng(3)
    candidates: list[list[int] | None] = [
        draw.permutation(23)[:12].tolist() if listed else None for _ in reference.users.user_key
    ]
    users = batch_of(reference.users, candidates)
    columns = ["user_key", "position", "item_key"]
    expected = lists_of(shifted(reference, 0.0), users)
    actual = lists_of(shifted(reference, shift), users)
    pd.testing.assert_frame_equal(actual[columns], expected[columns])
    # The scores of the lists are still probabilities, in descending order.
    odds = (expected.score / (1 - expected.score)).to_numpy(np.float64)
    np.testing.assert_allclose(actual.score, 1 / (1 + np.exp(-shift) / odds), rtol=1e-4, atol=1e-30)
    assert actual.groupby("user_key").score.is_monotonic_decreasing.all()
    assert actual.score.duplicated().mean() > 0.5


def test_candidate_lists_of_none_one_and_many(reference: ReferenceScores, recommender: ListRanker) -> None:
    draw = np.random.default_rng(8)
    sizes = [0, 1, 3, 5, 6, 23] * 6 + [0]
    chosen = [sorted(draw.choice(23, size, replace=False).tolist()) for size in sizes]
    shuffled = [draw.permutation(indices).tolist() for indices in chosen]  # the order of a list means nothing
    actual = lists_of(recommender, batch_of(reference.users, candidates=shuffled))
    by_user = dict(zip(reference.users.user_key, chosen, strict=True))
    assert_same_lists(actual, reference.expected(5, by_user))
    positions = actual.groupby("user_key").position.apply(list).to_dict()
    for key, user_rows in by_user.items():
        assert positions.get(key, []) == list(range(1, min(5, len(user_rows)) + 1))


def test_excluded_items_are_left_out(reference: ReferenceScores, recommender: ListRanker) -> None:
    excluded: list[list[int] | None] = [
        None,
        [],
        [4],
        [5, 11, 4],
        list(range(23)),
        list(range(1, 23)),
        *[[0, 22]] * 31,
    ]
    actual = lists_of(recommender, batch_of(reference.users, excluded=excluded))
    left = [[item for item in range(23) if item not in (gone or [])] for gone in excluded]
    assert_same_lists(actual, reference.expected(5, dict(zip(reference.users.user_key, left, strict=True))))


@pytest.mark.parametrize("step_rows, places", [(1, 1), (7, 1), (7, 60), (100, 30), (10_000, 10_000)])
def test_steps_blocks_and_batches_do_not_change_the_lists(
    reference: ReferenceScores,
    recommender: ListRanker,
    monkeypatch: pytest.MonkeyPatch,
    step_rows: int,
    places: int,
) -> None:
    monkeypatch.setattr(module, "_MIN_PLACES", places)
    predictor = replace(recommender.predictor, micro_batch=MicroBatch(step_rows))
    stepped = ListRanker.of(predictor, recommender.items, recommender.k)
    candidates: list[list[int] | None] = [None, [3], [], [7, 2, 9, 0], None] * 7 + [None, [1]]
    whole = batch_of(reference.users, candidates=candidates)
    pieces = [whole.slice(start, 5) for start in range(0, 37, 5)]
    expected = lists_of(recommender, whole)
    for actual in (lists_of(stepped, whole), lists_of(stepped, *pieces)):
        assert_same_lists(actual, expected)


def test_blocks_hold_every_user_once_within_their_bound() -> None:
    most = np.array([3, 0, 5, 1, 1, 1, 9, 0, 2])
    user_blocks = list(blocks(most, 8, 1, 100))
    assert [user for block in user_blocks for user in range(block.start, block.stop)] == list(
        range(len(most))
    )
    for block in user_blocks:
        assert block.stop - block.start == 1 or (block.stop - block.start) * most[block].max() <= 8
    assert [block.stop - block.start for block in blocks(most, 8, 4, 100)] == [4, 4, 1]
    assert [block.stop - block.start for block in blocks(most, 1_000, 1, 2)] == [2, 2, 2, 2, 1]


def test_unknown_users_are_scored_by_their_other_features(
    reference: ReferenceScores, recommender: ListRanker
) -> None:
    stranger = reference.users[reference.users.who == 2]
    assert len(stranger) > 1
    assert_same_lists(
        lists_of(recommender, batch_of(stranger.reset_index(drop=True))),
        reference.expected(5).query("user_key in @stranger.user_key"),
    )


def test_nan_names_user_and_item(reference: ReferenceScores, recommender: ListRanker) -> None:
    users = reference.users.copy()
    users.loc[20, "age"] = np.nan
    with pytest.raises(DataError, match=r"user u020 with item i000 as NaN"):
        lists_of(recommender, batch_of(users))


def test_repeated_candidates_are_refused(reference: ReferenceScores, recommender: ListRanker) -> None:
    with pytest.raises(DataError, match="candidates of user u001 contain an item twice"):
        lists_of(recommender, batch_of(reference.users[:2], candidates=[[1, 2], [3, 3]]))


@pytest.mark.parametrize("listed", [[23], [-1]])
def test_candidates_out_of_range_are_refused(
    reference: ReferenceScores, recommender: ListRanker, listed: list[int]
) -> None:
    with pytest.raises(DataError, match="candidate indices of user u001"):
        lists_of(recommender, batch_of(reference.users[:2], candidates=[[1], listed]))


def test_items_must_be_counted_from_zero(reference: ReferenceScores, recommender: ListRanker) -> None:
    with pytest.raises(DataError, match="the values of item_index are not 0, 1, 2"):
        read_items(reference.request.item_files[::-1], recommender.predictor, CONTEXT)


@pytest.mark.parametrize("context, named", [({"hour": 0.25}, "device"), ({**CONTEXT, "kind": 3}, "kind")])
def test_context_must_give_exactly_the_context_features(
    reference: ReferenceScores, recommender: ListRanker, context: dict[str, float], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        read_items(reference.request.item_files, recommender.predictor, context)


def test_dlrm_lists_equal_its_own_forward_pass(reference: ReferenceScores, tmp_path: Path) -> None:
    path = write_model(tmp_path / "dlrm", architecture="dlrm")
    request = replace(reference.request, model=ModelRequest(path, "cpu", 64))
    recommender = make_recommender(request)
    pairs = reference.users.merge(reference.items, how="cross").assign(**CONTEXT)
    dense = torch.tensor(pairs[[feature.name for feature in SPEC.dense]].to_numpy(np.float32))
    categorical = torch.tensor(pairs[[feature.name for feature in SPEC.categorical]].to_numpy(np.int64))
    with torch.inference_mode():
        probabilities = torch.sigmoid(recommender.predictor.model(dense, categorical)).numpy()
    expected = replace(reference, probabilities=probabilities.reshape(37, 23)).expected(5)
    assert_same_lists(lists_of(recommender, batch_of(reference.users)), expected)
