"""Cases of candidates: empty, repeated, out of range, scored as NaN; and the pieces of long lists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from conf.errors import DataError
from scoring.ranking.pairs import Items
from scoring.ranking.recommender import ListRanker, Pieces, piece_width
from scoring.requests import ModelRequest
from tests.scoring.ranking.test_recommender import assert_same_lists, batch_of, lists_of
from tests.scoring.ranking.test_user_major import save
from tests.scoring.reference_scores import ReferenceScores, make_items, make_recommender
from tests.training.architectures import variant


def test_a_nan_of_what_is_no_candidate_stops_nobody(reference: ReferenceScores, tmp_path: Path) -> None:
    items = make_items()
    items.loc[0, "price"] = np.nan
    path = str(tmp_path / "items.parquet")
    pq.write_table(pa.Table.from_pandas(items, preserve_index=False), path)
    recommender = make_recommender(replace(reference.request, item_files=(path,)))
    listed: list[list[int] | None] = [None, None, [4, 2, 8], *([[1]] * 34)]
    excluded: list[list[int] | None] = [[0], [0, *range(5, 23)], *([None] * 35)]
    left = [list(range(1, 23)), [1, 2, 3, 4], [4, 2, 8], *([[1]] * 34)]
    expected = reference.expected(5, dict(zip(reference.users.user_key, left, strict=True)))
    assert_same_lists(lists_of(recommender, batch_of(reference.users, listed, excluded)), expected)
    with pytest.raises(DataError, match="user u002 with item i000 as NaN"):
        lists_of(recommender, batch_of(reference.users, [[1], [2], [3, 0], *([[1]] * 34)]))


@pytest.mark.parametrize("listed", [[*range(22), 21], [9, 1, 2, 9]])
def test_an_item_listed_twice_is_refused_whatever_its_score(
    reference: ReferenceScores, listed: list[int]
) -> None:
    best = make_recommender(replace(reference.request, k=1))
    with pytest.raises(DataError, match="candidates of user u001 contain an item twice"):
        lists_of(best, batch_of(reference.users[:2], [[1], listed]))


@pytest.mark.parametrize("excluded", [[23], [-1]])
def test_excluded_items_out_of_range_are_refused(reference: ReferenceScores, excluded: list[int]) -> None:
    recommender = make_recommender(reference.request)
    with pytest.raises(DataError, match="candidate indices of user u001"):
        lists_of(recommender, batch_of(reference.users[:2], None, [[1], excluded]))


def test_numbers_beyond_float16_are_named_as_such(reference: ReferenceScores, tmp_path: Path) -> None:
    path = save(tmp_path / "model", variant("dlrm"))
    model = ModelRequest(path, "cpu", 64, "fp16")
    recommender = make_recommender(replace(reference.request, model=model))
    users = reference.users.copy()
    users.loc[3, "age"] = np.float32(1e12)
    with pytest.raises(DataError, match="user u003 with item i000 as NaN") as raised:
        lists_of(recommender, batch_of(users))
    assert "score.precision=bf16" in raised.value.remedy


def test_pieces_hold_every_item_of_every_list_once() -> None:
    draw = np.random.default_rng(5)
    for longest in (1, 3, 40, 700):
        lengths = draw.integers(0, longest + 1, 30)
        starts = np.cumsum(lengths) - lengths
        items = draw.integers(0, 1_000, int(lengths.sum()))
        pieces = Pieces.of(lengths, starts, torch.from_numpy(items))
        held = pieces.items[pieces.filled]
        assert held.tolist() == items.tolist()
        assert pieces.items.numel() <= max(1.125 * len(items), len(items))
        for number, length in enumerate(lengths):
            of_list = pieces.list == number
            assert pieces.filled[of_list].sum() == length
            assert pieces.place[of_list].tolist() == list(range(of_list.sum()))
            assert of_list.sum() <= pieces.most
        assert not pieces.items[~pieces.filled].any()


def test_pieces_are_as_wide_as_few_empty_places_allow() -> None:
    assert piece_width(np.array([500, 500])) == 256
    assert piece_width(np.array([1, 1, 1])) == 1
    assert piece_width(np.array([8, 16, 0, 24])) == 8
    assert piece_width(np.array([100_000, 1])) == 256


def test_users_without_candidates_among_no_items_have_no_rows(reference: ReferenceScores) -> None:
    recommender = make_recommender(reference.request)
    empty = replace(
        recommender,
        items=Items(pa.array([], pa.string()), recommender.items.side.part(slice(0, 0))),
    )
    nothing = ListRanker.of(empty.predictor, empty.items, 5)
    assert lists_of(nothing, batch_of(reference.users)).empty


def test_a_slice_of_a_batch_has_the_lists_of_its_own_users(reference: ReferenceScores) -> None:
    recommender = make_recommender(reference.request)
    listed: list[list[int] | None] = [[user % 23] for user in range(37)]
    actual = lists_of(recommender, batch_of(reference.users, listed).slice(30, 4))
    assert actual.user_key.tolist() == [f"u{user:03d}" for user in range(30, 34)]
    assert actual.item_key.tolist() == [f"i{user % 23:03d}" for user in range(30, 34)]
