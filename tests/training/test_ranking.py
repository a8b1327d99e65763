"""MAP@k and NDCG@k by group against computations by definition, one group and one row at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.errors import ConfigError, DataError
from metrics import map_at_k, ndcg_at_k

Row = tuple[int, float, str]


def ranked_groups(rows: list[Row]) -> list[list[int]]:
    """The labels of every group that has a click, best score first.

    Of rows with equal scores, those without a click come first.
    """
    groups: dict[str, list[tuple[float, int]]] = {}
    for label, score, group in rows:
        groups.setdefault(group, []).append((-score, label))
    ranked = [[label for _, label in sorted(group_rows)] for group_rows in groups.values()]
    return [labels for labels in ranked if 1 in labels]


def map_by_definition(rows: list[Row], k: int) -> float:
    averages = []
    for labels in ranked_groups(rows):
        precisions = [sum(labels[: i + 1]) / (i + 1) for i in range(min(k, len(labels))) if labels[i]]
        averages.append(sum(precisions) / min(k, sum(labels)))
    return sum(averages) / len(averages)


def ndcg_by_definition(rows: list[Row], k: int) -> float:
    def dcg(labels: list[int]) -> float:
        return sum(label / math.log2(i + 2) for i, label in enumerate(labels[:k]))

    values = [dcg(labels) / dcg(sorted(labels, reverse=True)) for labels in ranked_groups(rows)]
    return sum(values) / len(values)


some_rows = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([-1.0, 0.0, 0.5, 0.50001, 2.0]), st.sampled_from("abcde")),
    min_size=1,
    max_size=40,
).filter(lambda rows: any(label for label, _, _ in rows))


@given(some_rows, st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_both_equal_their_definitions(rows: list[Row], k: int) -> None:
    labels, scores, groups = zip(*rows, strict=True)
    assert map_at_k(labels, scores, groups, k) == pytest.approx(map_by_definition(rows, k), abs=1e-12)
    assert ndcg_at_k(labels, scores, groups, k) == pytest.approx(ndcg_by_definition(rows, k), abs=1e-12)


def test_figures_by_hand() -> None:
    labels, scores = [0, 1, 0, 1], [0.9, 0.8, 0.7, 0.6]
    assert map_at_k(labels, scores, [7] * 4, 12) == pytest.approx((1 / 2 + 2 / 4) / 2)
    assert map_at_k(labels, scores, [7] * 4, 3) == pytest.approx((1 / 2) / 2)
    assert map_at_k(labels, scores, [7] * 4, 1) == 0
    ideal = 1 + 1 / math.log2(3)
    assert ndcg_at_k(labels, scores, [7] * 4, 12) == pytest.approx(
        (1 / math.log2(3) + 1 / math.log2(5)) / ideal
    )


def test_a_constant_score_earns_the_least_whatever_the_order_of_rows() -> None:
    labels, groups = np.array([1, 0, 0, 0, 1, 0]), np.array([1, 1, 1, 2, 2, 2])
    for order in (np.arange(6), np.arange(6)[::-1]):
        assert map_at_k(labels[order], np.zeros(6), groups[order], 12) == pytest.approx(1 / 3)


def test_groups_without_a_click_do_not_count() -> None:
    assert map_at_k([1, 0, 0, 0], [0.9, 0.1, 0.9, 0.1], ["a", "a", "b", "b"], 12) == 1.0
    assert ndcg_at_k([0, 0, 1, 0], [0.9, 0.1, 0.9, 0.1], ["a", "a", "b", "b"], 12) == 1.0


def test_what_cannot_be_measured_is_named() -> None:
    with pytest.raises(DataError, match="no group among 2 rows has a click"):
        map_at_k([0, 0], [0.1, 0.2], [1, 1], 12)
    with pytest.raises(DataError, match="no group among 0 rows"):
        ndcg_at_k([], [], [], 12)
    with pytest.raises(DataError, match="differ in length"):
        map_at_k([0, 1], [0.1, 0.2], [1], 12)
    with pytest.raises(DataError, match="0 or 1"):
        map_at_k([0, 2], [0.1, 0.2], [1, 1], 12)
    with pytest.raises(ConfigError, match="k=0"):
        map_at_k([0, 1], [0.1, 0.2], [1, 1], 0)
