"""The total order of scores: keys, their inverse, and ties."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from scoring.ranking.top_k import NO_CANDIDATE, ranking_keys, split_keys, top_keys

SCORES = [0.5, -0.0, 0.0, 1.0, -1.5, 1e-38, -1e-38, 0.99999994, float("inf"), float("-inf"), 3e38, -3e38]


def test_keys_order_as_score_descending_then_index_ascending() -> None:
    scores = torch.tensor(SCORES * 3, dtype=torch.float32)
    index = torch.randperm(len(scores), generator=torch.Generator().manual_seed(0))
    keys = ranking_keys(scores, index)
    by_key = np.argsort(-keys.numpy().astype(object), kind="stable")
    by_rule = np.lexsort((index.numpy(), -scores.numpy().astype(np.float64)))
    np.testing.assert_array_equal(by_key, by_rule)
    assert len(torch.unique(keys)) == len(keys)
    assert int(keys.min()) > NO_CANDIDATE


def test_keys_give_back_what_they_were_made_of() -> None:
    scores = torch.tensor(SCORES, dtype=torch.float32)
    index = torch.tensor([0, 1, 2**31 - 1, 2**32 - 1, *range(8)])
    found_scores, found_index = split_keys(ranking_keys(scores, index))
    assert torch.equal(found_scores, scores)
    assert torch.equal(found_index, index)


@pytest.mark.parametrize("k", [1, 3, 40])
def test_top_keys_are_those_of_a_full_sort(k: int) -> None:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randint(0, 4, (6, 40), generator=generator).float() / 4  # many ties
    keys = ranking_keys(scores.flatten(), torch.arange(40).repeat(6)).view(6, 40)
    keys[2, 1:] = NO_CANDIDATE
    keys[4] = NO_CANDIDATE
    expected = torch.sort(keys, dim=1, descending=True).values[:, :k]
    assert torch.equal(top_keys(keys, k), expected)


def test_asking_for_more_than_there_is_gives_what_there_is() -> None:
    keys = ranking_keys(torch.tensor([0.1, 0.2]), torch.tensor([0, 1])).view(1, 2)
    assert top_keys(keys, 10).shape == (1, 2)
