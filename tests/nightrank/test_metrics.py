"""nightrank.metrics equals scikit-learn and the definitions of RecBole, and refuses what it cannot measure."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

import nightrank
from metrics import map_at_k, ndcg_at_k
from nightrank import metrics
from tests.processes import ROOT

RANKING = (
    metrics.hit_rate,
    metrics.ndcg,
    metrics.mean_average_precision,
    metrics.mean_reciprocal_rank,
    metrics.recall,
    metrics.precision,
)

# Few distinct scores, so that most inputs have ties.
scores = st.sampled_from([2.0**-10, 0.1, 0.25, 0.5, 0.75, 0.9])
rows = st.lists(
    st.tuples(st.integers(0, 1), scores, st.sampled_from([0.0, 0.5, 1.0, 3.0])), min_size=2, max_size=40
)


def has_both(labels: list[int], weights: list[float]) -> bool:
    used = {label for label, weight in zip(labels, weights, strict=True) if weight}
    return used == {0, 1}


@given(rows, st.booleans())
@settings(max_examples=150, deadline=None)
def test_measures_of_rows_equal_those_of_scikit_learn(
    cases: list[tuple[int, float, float]], weighted: bool
) -> None:
    labels, values, drawn = (list(column) for column in zip(*cases, strict=True))
    weights = drawn if weighted else None
    if not has_both(labels, drawn if weighted else [1.0] * len(labels)):
        with pytest.raises(nightrank.DataError, match="needs both classes"):
            metrics.auc(labels, values, weights)
        with pytest.raises(nightrank.DataError, match=r"needs both classes|no rows"):
            metrics.normalized_entropy(labels, values, weights)
        return
    expected = sklearn_metrics.roc_auc_score(labels, values, sample_weight=weights)
    assert metrics.auc(labels, values, weights) == pytest.approx(expected, abs=1e-12)
    expected = sklearn_metrics.average_precision_score(labels, values, sample_weight=weights)
    assert metrics.average_precision(labels, values, weights) == pytest.approx(expected, abs=1e-12)
    expected = sklearn_metrics.log_loss(labels, values, sample_weight=weights)
    assert metrics.log_loss(labels, values, weights) == pytest.approx(expected, abs=1e-12)
    rate = np.average(labels, weights=weights)
    constant = sklearn_metrics.log_loss(labels, [rate] * len(labels), sample_weight=weights)
    assert metrics.normalized_entropy(labels, values, weights) == pytest.approx(expected / constant)


ITEMS = 7
user = st.tuples(
    st.permutations(range(ITEMS)),
    st.integers(0, ITEMS),  # length of the list
    st.sets(st.integers(0, ITEMS), max_size=ITEMS),  # one item is never recommended
    st.sampled_from([0.5, 1.0, 2.0]),
)


def recbole(hits: np.ndarray, wanted: np.ndarray, k: int) -> dict[str, np.ndarray]:
    """The values of each user, as in recbole/evaluator/metrics.py.

    hits: (U, k) bool, whether each list entry is relevant. wanted: (U,) number of relevant items.
    """
    places = np.arange(1, k + 1)
    precision = hits.cumsum(1) / places
    best = np.minimum(wanted, k)
    gains = 1 / np.log2(places + 1)
    first = np.where(hits.any(1), hits.argmax(1) + 1, np.inf)
    return {
        "hit_rate": (hits.cumsum(1) > 0)[:, -1].astype(float),
        "mean_reciprocal_rank": 1 / first,
        "mean_average_precision": (precision * hits).sum(1) / best,
        "recall": hits.sum(1) / wanted,
        "ndcg": (hits * gains).sum(1) / np.array([gains[:number].sum() for number in best]),
        "precision": precision[:, -1],
    }


@given(st.lists(user, min_size=1, max_size=6), st.integers(1, ITEMS + 2), st.booleans())
@settings(max_examples=150, deadline=None)
def test_measures_of_lists_equal_those_of_recbole(
    users: list[tuple[list[int], int, set[int], float]], k: int, texts: bool
) -> None:
    """Also for short and empty lists, and for users without relevant items, whom RecBole leaves out."""
    lists = [order[:length] for order, length, _, _ in users]
    relevant = [sorted(wanted) for _, _, wanted, _ in users]
    weights = np.array([weight for _, _, _, weight in users])
    shown: Any = [[f"i{item}" for item in items] for items in lists] if texts else lists
    clicked: Any = [[f"i{item}" for item in items] for items in relevant] if texts else relevant
    kept = [place for place, wanted in enumerate(relevant) if wanted]
    if not kept:
        with pytest.raises(nightrank.DataError, match="has a relevant item"):
            metrics.ndcg(shown, clicked, k)
        return
    hits = np.zeros((len(kept), k), bool)
    for row, place in enumerate(kept):
        for position, item in enumerate(lists[place][:k]):
            hits[row, position] = item in relevant[place]
    wanted = np.array([len(relevant[place]) for place in kept])
    for name, values in recbole(hits, wanted, k).items():
        measure = getattr(metrics, name)
        assert measure(shown, clicked, k) == pytest.approx(values.mean(), abs=1e-12), name
        expected = np.average(values, weights=weights[kept])
        assert measure(shown, clicked, k, weights) == pytest.approx(expected, abs=1e-12), name


def test_the_oracle_above_can_differ() -> None:
    values = recbole(np.array([[False, True, True]]), np.array([4]), 3)
    assert {name: value[0] for name, value in values.items()} == pytest.approx(
        {
            "hit_rate": 1.0,
            "mean_reciprocal_rank": 1 / 2,
            "mean_average_precision": (1 / 2 + 2 / 3) / 3,
            "recall": 2 / 4,
            "ndcg": (1 / math.log2(3) + 1 / 2) / (1 + 1 / math.log2(3) + 1 / 2),
            "precision": 2 / 3,
        }
    )


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), scores), min_size=1, max_size=30),
    st.integers(1, 8),
)
@settings(max_examples=200, deadline=None)
def test_ranked_rows_give_the_measures_of_the_gate(cases: list[tuple[int, int, float]], k: int) -> None:
    """Rows of displays, with ties to the disadvantage of the model, equal the measures of evaluate_model."""
    groups, labels, values = (list(column) for column in zip(*cases, strict=True))
    if not any(labels):
        with pytest.raises(nightrank.DataError, match="no group"):
            metrics.ranked_rows(labels, values, groups)
        return
    lists, relevant = metrics.ranked_rows(labels, values, groups)
    assert metrics.ndcg(lists, relevant, k) == pytest.approx(ndcg_at_k(labels, values, groups, k))
    expected = map_at_k(labels, values, groups, k)
    assert metrics.mean_average_precision(lists, relevant, k) == pytest.approx(expected)


def test_ndcg_and_map_equal_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (50, 8))
    labels[labels.sum(1) == 0, 0] = 1
    values = rng.permuted(np.tile(np.arange(8.0), (50, 1)), axis=1)  # no ties
    order = np.argsort(-values, axis=1)
    relevant = [np.flatnonzero(row) for row in labels]
    for k in (1, 3, 8):
        expected = sklearn_metrics.ndcg_score(labels, values, k=k)
        assert metrics.ndcg(order, relevant, k) == pytest.approx(expected)
    expected = sklearn_metrics.label_ranking_average_precision_score(labels, values)
    assert metrics.mean_average_precision(order, relevant, 8) == pytest.approx(expected)


def test_coverage_and_novelty() -> None:
    lists = [["a", "b"], ["a", "c"], []]
    assert metrics.coverage(lists, ["a", "b", "c", "d", "d"]) == 3 / 4
    assert metrics.coverage(lists, ["a", "b", "c", "d"], k=1) == 1 / 4
    assert metrics.coverage([[], []], ["a"]) == 0
    seen = [["a", "a", "b"], ["a"], ["a"], ["a", "e"]]
    # a: 4 of 4 users, 0 bits; b: 1 of 4 users, 2 bits; c: nobody, like 1 of 4 users
    assert metrics.novelty(lists, seen) == pytest.approx((1 + 1) / 2)
    assert metrics.novelty(lists, seen, k=1) == 0
    assert metrics.novelty([["b"], ["a"]], seen, weights=[3, 1]) == pytest.approx(1.5)
    with pytest.raises(nightrank.DataError, match="1 of 3 recommended items are not in the catalogue"):
        metrics.coverage(lists, ["a", "b"])
    with pytest.raises(nightrank.DataError, match="catalogue is empty"):
        metrics.coverage(lists, [])
    with pytest.raises(nightrank.DataError, match="all lists are empty"):
        metrics.novelty([[], []], seen)
    with pytest.raises(nightrank.DataError, match="seen has no users"):
        metrics.novelty(lists, [])


def test_large_ids_of_signed_and_unsigned_columns_are_compared_exactly() -> None:
    """float64, NumPy's common type of int64 and uint64, has the same value for all these ids."""
    first, near, far = 1_500_000_000_000_000_001, 1_500_000_000_000_000_050, 1_500_000_000_000_000_100
    shown = [np.array([first, far], np.uint64)]
    assert metrics.hit_rate(shown, [np.array([near])], k=2) == 0
    assert metrics.hit_rate(shown, [np.array([far])], k=2) == 1
    assert metrics.hit_rate([*shown, [near]], [np.array([near]), np.array([near])], k=2) == 0.5
    assert metrics.coverage(shown, np.array([first, near, far])) == 2 / 3
    assert metrics.novelty(shown, [[near], [far]]) == 1
    largest = np.array([2**64 - 1], np.uint64)
    assert metrics.hit_rate([largest], [np.array([1])], k=1) == 0
    assert metrics.hit_rate([np.array([1], np.uint8)], [np.array([-1, 1])], k=1) == 1
    for relevant in (np.array([-1]), np.array([-1], np.int8)):
        with pytest.raises(nightrank.DataError, match="ids -1 and 18446744073709551615 do not fit"):
            metrics.hit_rate([largest], [relevant], k=1)


def test_columns_of_pandas_are_arguments() -> None:
    frame = pd.DataFrame({"user": [2, 1, 2], "item": ["a", "b", "c"]})
    lists = frame.groupby("user")["item"].apply(list)  # of users 1 and 2
    assert metrics.recall(lists, [["b"], ["c", "d"]], k=2) == 0.75
    assert metrics.auc(pd.Series([0, 1]), pd.Series([0.1, 0.2])) == 1.0
    assert metrics.interval(metrics.auc, [0, 1] * 20, [0.1, 0.2] * 20, users=pd.Series(list("aabbccdd" * 5)))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: metrics.auc([1, 1], [0.1, 0.2]), "needs both classes"),
        (lambda: metrics.average_precision([0, 0], [0.1, 0.2]), "no row is positive"),
        (lambda: metrics.log_loss([], []), "no rows"),
        (lambda: metrics.auc([0, 2], [0.1, 0.2]), r"row 1: the label 2\.0 is not 0 or 1"),
        (lambda: metrics.auc([0, math.nan], [0.1, 0.2]), "row 1: the label nan"),
        (lambda: metrics.auc([0, 1], [0.1, math.nan]), "1 of 2 scores are not finite"),
        (lambda: metrics.auc([0, 1], [0.1]), "the same length"),
        (lambda: metrics.auc([[0, 1]], [[0.1, 0.2]]), r"the shapes \(1, 2\), \(1, 2\) and \(1, 2\)"),
        (lambda: metrics.auc([0, 1], [0.1, 0.2], [1, -1]), r"weight 1 is -1\.0"),
        (lambda: metrics.auc([0, 1], [0.1, 0.2], [1, math.nan]), "weight 1 is nan"),
        (lambda: metrics.log_loss([0, 1], [0.1, 1.5]), r"row 1: the probability 1\.5 is outside"),
        (lambda: metrics.ndcg([["a"]], [[]], k=1), "none of 1 users has a relevant item"),
        (lambda: metrics.ndcg([["a"]], [["a"], ["b"]], k=1), "1 lists, and relevant items of 2 users"),
        (lambda: metrics.ndcg([["a", "a"]], [["a"]], k=1), "list 0 has '?a'? twice"),
        (lambda: metrics.ndcg([["a"]], [[1]], k=1), "different types"),
        (lambda: metrics.ndcg([["a"], [1]], [["a"], ["b"]], k=1), "two types"),
        (lambda: metrics.ndcg([[1.5]], [[1]], k=1), "contains 1.5 of the type float"),
        (lambda: metrics.ndcg([np.array([1.5])], [[1]], k=1), "ids of the type float64"),
        (lambda: metrics.ndcg([["a", None]], [["a"]], k=1), "contains None of the type NoneType"),
        (lambda: metrics.ndcg([[1, math.nan]], [[1]], k=1), "contains nan of the type float"),
        (lambda: metrics.ndcg([["a", math.nan]], [["a"]], k=1), "recommended contains nan of the type float"),
        (lambda: metrics.ndcg([["a"]], [pd.Series(["a", math.nan])], k=1), "relevant contains nan"),
        (lambda: metrics.coverage([["a"]], ["a", math.nan]), "catalogue contains nan"),
        (lambda: metrics.ndcg([["a", 1]], [["1"]], k=1), "recommended has a list with ids of two types"),
        (lambda: metrics.auc(["a", "b"], [0.1, 0.2]), "the labels are not numbers: could not convert"),
        (lambda: metrics.auc([0, 1], [0.1, 0.2], [1, 10**400]), "the weights are not numbers"),
        (lambda: metrics.ranked_rows([0, 1], [0.1, 0.2], ["a", None]), "1 of 2 groups are missing"),
        (lambda: metrics.ranked_rows([0, 1], [0.1, 0.2], ["a", 1]), "groups have different types"),
        (lambda: metrics.ndcg(["ab"], [["a"]], k=1), "not a list of ids"),
        (lambda: metrics.ndcg("ab", [["a"]], k=1), "is a string"),
        (lambda: metrics.ndcg([["a"]], [["a"]], k=1, weights=[1, 2]), "1 lists, but weights of shape"),
        (lambda: metrics.ndcg([["a"]], [["a"]], k=1, weights=[0]), "weights sum to 0"),
        (
            lambda: metrics.interval(metrics.auc, [0, 1], [0, 1], users=["a", None]),
            "1 of 2 users are missing",
        ),
        (
            lambda: metrics.interval(metrics.auc, [0, 1], [0, 1], users=["a", math.nan]),
            "1 of 2 users are missing",
        ),
        (
            lambda: metrics.interval(metrics.auc, [0, 1], [0, 1], users=["a", 1]),
            "users have different types",
        ),
        (lambda: metrics.interval(metrics.auc, [0, 1], [0, 1], users=["a"]), "2 rows, but users of shape"),
        (lambda: metrics.interval(metrics.auc, [0, 1], [0, 1]), "a tenth of the resamples"),
    ],
)
def test_unfit_data_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(nightrank.DataError, match=message):
        call()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: metrics.ndcg([["a"]], [["a"]], k=0), "k=0 is below 1"),
        (lambda: metrics.coverage([["a"]], ["a"], k=0), "k=0 is below 1"),
        (lambda: metrics.ndcg([["a"]], [["a"]], k=2.0), "k=2.0 is not an integer"),  # type: ignore[arg-type]
        (lambda: metrics.ndcg([["a"]], [["a"]], k=2**70), "is above 2"),
        (lambda: metrics.interval(metrics.auc, [0, 1], [0, 1], replicates=100.0), "replicates=100.0 is not"),  # type: ignore[arg-type]
        (lambda: metrics.interval(metrics.auc, [0, 1], [0, 1], seed=2**64), "seed=18446744073709551616 is"),
        (lambda: metrics.interval(metrics.coverage, [["a"]], ["a"]), "not a measure with an interval"),
        (lambda: metrics.interval(metrics.ndcg, [["a"]], [["a"]], k=1, users=[1]), "`users` is for rows"),
        (lambda: metrics.interval(metrics.auc, [0, 1], [0, 1], replicates=0), "replicates=0"),
        (lambda: metrics.interval(metrics.auc, [0, 1], [0, 1], confidence=1.0), "confidence=1.0"),
    ],
)
def test_wrong_arguments_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(nightrank.ConfigError, match=message):
        call()


def made_rows(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, probabilities and users of 2,000 rows of 200 users, who differ in their click rate."""
    users = rng.integers(0, 200, 2000)
    rate = rng.beta(2, 3, 200)[users]
    labels = (rng.random(2000) < rate).astype(int)
    return labels, np.clip(rate + rng.normal(0, 0.2, 2000), 0.01, 0.99), users


@pytest.mark.parametrize("measure", [metrics.auc, metrics.average_precision, metrics.log_loss])
def test_intervals_of_rows_are_a_bootstrap_over_users(measure: Callable[..., float]) -> None:
    """About as wide as a bootstrap that draws users with replacement, and wider than one over rows."""
    labels, scores_of_rows, users = made_rows(np.random.default_rng(3))
    interval = metrics.interval(measure, labels, scores_of_rows, users=users, replicates=400)
    assert interval.value == measure(labels, scores_of_rows)
    assert interval.low < interval.value < interval.high
    assert interval.replicates == 400
    rng = np.random.default_rng(4)
    of_user = [np.flatnonzero(users == one) for one in range(200)]
    drawn = []
    for _ in range(400):
        chosen = np.concatenate([of_user[one] for one in rng.integers(0, 200, 200)])
        drawn.append(measure(labels[chosen], scores_of_rows[chosen]))
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert interval.high - interval.low == pytest.approx(high - low, rel=0.2)
    assert interval.low == pytest.approx(low, abs=0.25 * (high - low))
    again = metrics.interval(measure, labels, scores_of_rows, users=users, replicates=400)
    assert again == interval
    order = np.random.default_rng(5).permutation(2000)
    shuffled = metrics.interval(
        measure, labels[order], scores_of_rows[order], users=users[order], replicates=400
    )
    assert (shuffled.low, shuffled.high) == pytest.approx((interval.low, interval.high), abs=1e-12)


@pytest.mark.parametrize(
    "measure, scores_name",
    [
        (metrics.auc, "scores"),
        (metrics.average_precision, "scores"),
        (metrics.log_loss, "probabilities"),
        (metrics.normalized_entropy, "probabilities"),
    ],
)
def test_intervals_take_the_named_arguments_of_a_measure(
    measure: Callable[..., float], scores_name: str
) -> None:
    labels, scores_of_rows, _ = made_rows(np.random.default_rng(9))
    weights = np.arange(2000) % 3
    by_position = metrics.interval(measure, labels, scores_of_rows, weights, replicates=20)
    named = {"labels": labels, scores_name: scores_of_rows, "weights": weights}
    assert metrics.interval(measure, **named, replicates=20) == by_position
    assert metrics.interval(measure, labels, **{scores_name: scores_of_rows}, replicates=20)
    with pytest.raises(TypeError, match="unexpected keyword argument 'logits'"):
        metrics.interval(measure, labels, logits=scores_of_rows)


def test_intervals_of_lists_take_the_named_arguments_of_a_measure() -> None:
    lists, items = [["a"], ["b"]] * 9, [["a"], ["a"]] * 9
    for measure in RANKING:
        by_position = metrics.interval(measure, lists, items, 1, replicates=20)
        assert metrics.interval(measure, recommended=lists, relevant=items, k=1, replicates=20) == by_position
    by_position = metrics.interval(metrics.novelty, lists, items, replicates=20)
    assert metrics.interval(metrics.novelty, recommended=lists, seen=items, replicates=20) == by_position


def test_the_compiled_auc_equals_the_general_one() -> None:
    """Weights of 1 take the general computation, no weights the compiled one."""
    labels, scores_of_rows, users = made_rows(np.random.default_rng(6))
    options = {"users": users, "replicates": 50}
    compiled = metrics.interval(metrics.auc, labels, scores_of_rows, **options)
    general = metrics.interval(metrics.auc, labels, scores_of_rows, weights=np.ones(2000), **options)
    assert (compiled.low, compiled.high) == pytest.approx((general.low, general.high), abs=1e-12)


@pytest.mark.parametrize("measure", RANKING)
def test_intervals_of_lists_cover_the_mean_of_the_population(measure: Callable[..., float]) -> None:
    """Of 100 intervals with confidence 0.9, each of 150 users, about 90 contain the population's value."""
    rng = np.random.default_rng(7)
    lists = rng.permuted(np.tile(np.arange(12), (20_000, 1)), axis=1)
    relevant = [np.flatnonzero(row) for row in rng.random((20_000, 12)) < 0.2]
    truth = measure(lists, relevant, k=5)
    covered = 0
    for sample in np.split(rng.permutation(20_000)[: 150 * 100], 100):
        interval = metrics.interval(
            measure, lists[sample], [relevant[one] for one in sample], k=5, confidence=0.9, replicates=200
        )
        covered += interval.low <= truth <= interval.high
    assert 80 <= covered <= 98


def test_lists_of_two_users_have_a_value_without_bounds() -> None:
    """In more than a tenth of the resamples, the weights of both users are 0."""
    interval = metrics.interval(metrics.hit_rate, [["a"], ["b"]], [["a"], ["a"]], k=1)
    assert interval.value == 0.5
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)
    assert interval.replicates < 900
    assert str(interval) == "0.5000 [nan, nan]"


def test_a_large_k_needs_no_memory() -> None:
    assert metrics.ndcg([["a", "b"]], [["b"]], k=2**40) == metrics.ndcg([["a", "b"]], [["b"]], k=2)


def test_an_interval_is_printed_with_its_value() -> None:
    interval = metrics.interval(
        metrics.novelty, [["a"]] * 30 + [["b"]] * 30, [["a"], ["a", "b"]], replicates=99
    )
    assert interval.value == 0.5
    assert interval.low < 0.5 < interval.high
    assert str(interval).startswith("0.5000 [0.")


@pytest.mark.processes
def test_the_module_needs_no_torch_and_no_spark() -> None:
    code = (
        "import sys, nightrank; nightrank.metrics.auc([0, 1], [0.1, 0.2]); "
        "print([name for name in ('torch', 'pyspark', 'pandas', 'sklearn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
