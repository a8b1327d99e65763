"""Measures from sums over ranges and ranks, against those of all rows at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from conf.errors import DataError
from metrics import auc, log_loss, normalized_entropy, summarize
from metrics.clicks import count_scores, merge_counts
from tests.training.ranks_in_threads import on_ranks
from training.collectives import LocalCollectives
from training.data.batch import Batch
from training.loop.evaluate import _CELLS, _cells_of, _owners, evaluate, summarize_over_ranks


def some_rows(rows: int, seed: int, decimals: int = 9) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Labels and probabilities of which many are equal when they are rounded."""
    rng = np.random.default_rng(seed)
    scores = rng.beta(1, 6, rows).round(decimals).astype(np.float32)
    return (rng.random(rows) < scores).astype(np.float32), scores


@pytest.mark.parametrize("decimals", [9, 2, 0])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_ranks_measure_what_one_does(ranks: int, decimals: int) -> None:
    labels, scores = some_rows(5_000, 0, decimals)
    places = np.random.default_rng(1).integers(0, ranks, 5_000)  # no rank has as many rows as another
    if ranks > 2:
        places[places == 1] = 0  # and one has none
    metrics_of_ranks = on_ranks(
        ranks,
        lambda collectives: summarize_over_ranks(
            torch.from_numpy(labels[places == collectives.rank]),
            torch.from_numpy(scores[places == collectives.rank]),
            collectives,
        ),
    )
    assert all(metrics == metrics_of_ranks[0] for metrics in metrics_of_ranks)
    expected = summarize(labels, scores)
    for name in ("auc", "rows", "positives"):
        assert metrics_of_ranks[0][name] == expected[name]
    for name in ("log_loss", "normalized_entropy"):
        assert metrics_of_ranks[0][name] == pytest.approx(expected[name], rel=1e-12)
    for name in ("ratio", "expected_error"):
        assert metrics_of_ranks[0]["calibration"][name] == pytest.approx(
            expected["calibration"][name], rel=1e-9
        )
    deciles = [
        [decile["rows"] for decile in one["calibration"]["deciles"]]
        for one in (metrics_of_ranks[0], expected)
    ]
    assert deciles[0] == deciles[1]


def test_the_measures_are_those_of_their_definitions() -> None:
    labels, scores = some_rows(3_000, 2, decimals=3)
    metrics = summarize(labels, scores)
    assert metrics["auc"] == pytest.approx(auc(labels, scores), abs=1e-12)
    assert metrics["log_loss"] == pytest.approx(log_loss(labels, scores), rel=1e-12)
    assert metrics["normalized_entropy"] == pytest.approx(normalized_entropy(labels, scores), rel=1e-12)
    assert metrics["calibration"]["ratio"] == pytest.approx(scores.astype(float).sum() / labels.sum())


def test_calibration_by_tenths_of_the_rows() -> None:
    scores = np.repeat(np.arange(1, 11) / 20, 10)  # ten groups of ten rows: the deciles
    labels = np.tile([1, 0, 0, 0, 0, 0, 0, 0, 0, 0], 10)  # one click in each
    calibration = summarize(labels, scores)["calibration"]
    assert [decile["rows"] for decile in calibration["deciles"]] == [10] * 10
    assert [decile["click_rate"] for decile in calibration["deciles"]] == pytest.approx([0.1] * 10)
    assert [decile["mean_probability"] for decile in calibration["deciles"]] == pytest.approx(
        np.arange(1, 11) / 20
    )
    assert calibration["expected_error"] == pytest.approx(np.abs(np.arange(1, 11) / 20 - 0.1).mean())
    assert calibration["ratio"] == pytest.approx(scores.sum() / 10)


def test_rows_that_score_alike_are_one_bin() -> None:
    calibration = summarize([1, 0, 0, 0], [0.5] * 4)["calibration"]
    assert calibration["deciles"] == [{"rows": 4, "mean_probability": 0.5, "click_rate": 0.25}]
    assert calibration["expected_error"] == 0.25


def test_what_is_undefined_is_none() -> None:
    nothing = torch.zeros(0)
    assert summarize_over_ranks(nothing, nothing, LocalCollectives()) == summarize([], [])
    assert summarize([0, 0], [0.1, 0.2])["calibration"]["ratio"] is None


def test_a_rank_that_predicts_nonsense_ends_all() -> None:
    def body(collectives: LocalCollectives) -> str:
        with pytest.raises(DataError, match="1 predicted probabilities are not finite") as raised:
            summarize_over_ranks(
                torch.ones(2), torch.tensor([0.5, torch.nan if collectives.rank else 0.5]), collectives
            )
        return raised.value.problem

    assert len(set(on_ranks(2, body))) == 1


def test_rows_with_high_logits_are_not_tied() -> None:
    """float32 rounds the sigmoids of logits above 17 to 1."""

    class Shifted(nn.Module):
        def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
            return dense[:, 0] + 20

    rng = np.random.default_rng(4)
    logits = torch.from_numpy(rng.normal(size=400).astype(np.float32))
    labels = (torch.from_numpy(rng.normal(size=400)) < logits).float()
    padding = torch.ones(400)
    padding[350:] = 0
    batch = Batch(logits[:, None], torch.zeros(400, 0, dtype=torch.int32), labels, padding, 350.0)
    loader: Any = SimpleNamespace(batches=lambda: iter([batch]))
    measured = evaluate(Shifted(), loader, LocalCollectives(), torch.device("cpu"))
    assert measured["auc"] == pytest.approx(auc(labels[:350], logits[:350]), abs=1e-5)
    assert measured["rows"] == 350


def test_high_scores_are_in_many_cells() -> None:
    cells = _cells_of(1 - 2.0 ** -np.arange(1, 50))
    assert (np.diff(cells) > 0).all()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
@settings(max_examples=200, deadline=None)
def test_cells_ascend_with_scores_and_equal_scores_share_one(scores: list[float]) -> None:
    ascending = np.sort(np.array(scores, dtype=np.float64))
    cells = _cells_of(ascending)
    assert (np.diff(cells) >= 0).all()
    assert cells.max() < _CELLS
    assert (_cells_of(np.array([-0.0, 0.0])) == 0).all()


def test_every_rank_owns_a_range_of_about_its_share() -> None:
    filled = np.zeros(_CELLS, np.int64)
    filled[np.random.default_rng(0).integers(0, _CELLS, 1_000)] += 7
    owners = _owners(filled, 4)
    assert (np.diff(owners) >= 0).all()
    shares = np.bincount(owners, weights=filled, minlength=4)
    assert np.abs(shares - filled.sum() / 4).max() <= 7
    assert _owners(np.zeros(_CELLS, np.int64), 4).max() <= 3


def test_merged_counts_are_those_of_all_rows() -> None:
    labels, scores = some_rows(400, 3, decimals=1)
    merged = merge_counts(
        [count_scores(labels[:150], scores[:150]), count_scores(labels[150:], scores[150:])]
    )
    for actual, expected in zip(merged, count_scores(labels, scores), strict=True):
        np.testing.assert_array_equal(actual, expected)
