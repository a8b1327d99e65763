"""Measures against computations by definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.errors import DataError
from metrics import auc, log_loss, normalized_entropy, summarize


def auc_by_pairs(labels: list[int], scores: list[float], weights: list[float]) -> float:
    """Every (positive, negative) pair counted by itself: O(n²)."""
    won = total = 0.0
    for i, positive in enumerate(labels):
        for j, negative in enumerate(labels):
            if positive == 1 and negative == 0:
                pair = weights[i] * weights[j]
                total += pair
                won += pair * (1.0 if scores[i] > scores[j] else 0.5 if scores[i] == scores[j] else 0.0)
    return won / total


rows = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([-2.0, 0.0, 0.1, 0.3, 0.30001, 5.0]), st.integers(0, 4)),
    min_size=2,
    max_size=40,
)


@given(rows)
@settings(max_examples=200, deadline=None)
def test_auc_equals_counting_pairs(cases: list[tuple[int, float, int]]) -> None:
    labels, scores, weights = (list(column) for column in zip(*cases, strict=True))
    if not any(w for y, w in zip(labels, weights, strict=True) if y) or not any(
        w for y, w in zip(labels, weights, strict=True) if not y
    ):
        with pytest.raises(DataError, match="needs both classes"):
            auc(labels, scores, weights)
        return
    assert auc(labels, scores, weights) == pytest.approx(auc_by_pairs(labels, scores, weights), abs=1e-12)


def test_the_check_above_can_fail() -> None:
    assert auc_by_pairs([1, 0], [0.0, 1.0], [1, 1]) == 0.0
    assert auc_by_pairs([1, 0, 0], [0.5, 0.5, 0.0], [1, 1, 1]) == 0.75


def test_auc_knows_no_order_and_no_scale() -> None:
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, 1000), rng.normal(size=1000).round(1)
    shuffled = rng.permutation(1000)
    assert auc(labels, scores) == auc(labels[shuffled], scores[shuffled])
    assert auc(labels, scores) == auc(labels, np.exp(scores))


def test_log_loss_is_the_mean_cross_entropy() -> None:
    assert log_loss([1, 0, 1], [0.9, 0.2, 0.5], [1, 2, 1]) == pytest.approx(
        -(math.log(0.9) + 2 * math.log(0.8) + math.log(0.5)) / 4
    )
    assert math.isfinite(log_loss([1, 0], [0.0, 1.0]))


def test_normalized_entropy_of_the_click_rate_is_one() -> None:
    labels = [1, 0, 0, 0]
    assert normalized_entropy(labels, [0.25] * 4) == pytest.approx(1.0)
    assert normalized_entropy(labels, [0.9, 0.1, 0.1, 0.1]) < 1


def test_undefined_measures_are_named_or_none() -> None:
    with pytest.raises(DataError, match="no rows"):
        log_loss([], [])
    with pytest.raises(DataError, match=r"click rate 1\.0"):
        normalized_entropy([1, 1], [0.5, 0.5])
    with pytest.raises(DataError, match="1 of 2 scores are not finite"):
        auc([0, 1], [0.1, math.nan])
    with pytest.raises(DataError, match="the same length"):
        auc([0, 1], [0.1])
    assert summarize([], []) == {
        "auc": None,
        "log_loss": None,
        "normalized_entropy": None,
        "rows": 0,
        "positives": 0,
        "calibration": None,
    }
    assert summarize([0, 0], [0.1, 0.2])["auc"] is None
    assert summarize([0, 1], [0.1, 0.2])["auc"] == 1.0
