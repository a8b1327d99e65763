"""The bootstrap against a naive loop that repeats rows, against theory, and with other ranges."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import metrics
from metrics import bootstrap
from metrics.bootstrap import Resample, combine_means, draw_weights, interval, reduce_means
from scoring.evaluation.prediction_quality import (
    UNIT,
    PredictionQuality,
    combine,
    measure_predictions,
    reduce_rows,
)
from tests.rows import as_frame, as_table

RESAMPLE = Resample(25, seed=3)


def rows_of_users(
    rows: int = 2_000, users: int = 90, seed: int = 1
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
    """Labels, probabilities with ties, and hashed users; a tenth of the users has half of the rows."""
    draw = np.random.default_rng(seed)
    probability = np.round(draw.beta(1.2, 4, rows), 2).astype(np.float32)
    label = (draw.random(rows) < probability).astype(np.float32)
    user = np.where(
        draw.random(rows) < 0.5, draw.integers(0, users // 10, rows), draw.integers(0, users, rows)
    )
    return label, probability, draw.integers(-(2**63), 2**63 - 1, users)[user]


def measured(
    label: NDArray[np.float32],
    probability: NDArray[np.float32],
    units: NDArray[np.int64],
    resample: Resample = RESAMPLE,
    cuts: tuple[float, ...] = (),
) -> PredictionQuality:
    """The quality of rows divided into ranges."""
    place = np.searchsorted(cuts, probability, side="right")
    ranges = [
        reduce_rows(label[place == number], probability[place == number], units[place == number], resample)
        for number in np.unique(place)[::-1]
    ]
    return combine(ranges)  # type: ignore[arg-type]


def weights_of(units: NDArray[np.int64], resample: Resample) -> NDArray[np.uint8]:
    """(B, n) weight of every row in every replicate."""
    return np.stack(list(draw_weights(units, resample)))


def test_each_replicate_equals_measures_of_repeated_rows() -> None:
    """The oracle does what the words say: it repeats each row as often as its user was drawn."""
    label, probability, units = rows_of_users()
    actual = measured(label, probability, units)
    for replicate, weight in enumerate(weights_of(units, RESAMPLE)):
        again = np.repeat(np.arange(len(label)), weight)
        expected = metrics.auc(label[again], probability[again])
        assert actual.replicates["auc"][replicate] == pytest.approx(expected, abs=1e-12)
        expected = metrics.log_loss(label[again], probability[again])
        assert actual.replicates["log_loss"][replicate] == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("rows", [0, 1, 2, 300, 2_047, 2_048, 2_049, 9_000])
@pytest.mark.parametrize("scores", [1, 3, 40, 10**6])
@pytest.mark.parametrize("replicates", [1, 33])
def test_the_compiled_sums_equal_those_of_numpy(rows: int, scores: int, replicates: int) -> None:
    """The numbers of rows and of distinct scores are around the size of a chunk of the compiled loop."""
    library = bootstrap.replicates_library()
    assert library is not None, "run `make setup`"
    draw = np.random.default_rng(rows + scores)
    ordered = np.sort(draw.integers(0, scores, rows)).astype(np.float64)
    users, clicks = draw.integers(0, 40, rows, dtype=np.int32), draw.random(rows) < 0.5
    # The largest weight that the compiled loop supports, where its sums could overflow.
    draws = [np.full(40, 15, np.uint8), *draw.integers(0, 16, (replicates, 40), dtype=np.uint8)]
    compiled = list(bootstrap.block_sums(users, clicks, ordered, iter(draws)))
    expected = list(bootstrap.numpy_sums(users, clicks, ordered, draws))
    np.testing.assert_array_equal(np.concatenate(compiled, axis=1), np.concatenate(expected, axis=1))


def test_without_the_library_numpy_computes_the_same_replicates(monkeypatch: pytest.MonkeyPatch) -> None:
    label, probability, units = rows_of_users()
    compiled = measured(label, probability, units)
    monkeypatch.setattr(bootstrap, "replicates_library", lambda: None)
    for name, values in measured(label, probability, units).replicates.items():
        np.testing.assert_array_equal(values, compiled.replicates[name])


def test_a_missing_library_is_a_warning_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bootstrap.replicates_library.cache_clear()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    try:
        assert bootstrap.replicates_library() is None
        assert "run `make setup`" in caplog.text
    finally:
        monkeypatch.undo()
        bootstrap.replicates_library.cache_clear()


def test_no_weight_is_larger_than_the_compiled_sums_allow() -> None:
    assert bootstrap._POISSON.max() <= 15


@pytest.mark.parametrize("cuts", [(0.1,), (0.01, 0.02, 0.03, 0.5), tuple(np.linspace(0, 1, 97))])
def test_ranges_and_the_order_of_rows_do_not_change_a_digit(cuts: tuple[float, ...]) -> None:
    label, probability, units = rows_of_users()
    whole = measured(label, probability, units)
    order = np.random.default_rng(9).permutation(len(label))
    cut = measured(label[order], probability[order], units[order], cuts=cuts)
    for name in ("auc", "log_loss"):
        np.testing.assert_array_equal(cut.replicates[name], whole.replicates[name])


def test_rows_of_a_user_are_drawn_together_and_weights_are_poisson() -> None:
    units = np.arange(200_000, dtype=np.int64) // 2
    weights = weights_of(units, Resample(6))
    np.testing.assert_array_equal(weights[:, ::2], weights[:, 1::2])
    for weight in weights[:, ::2]:
        expected = [math.exp(-1) / math.factorial(k) * len(weight) for k in range(6)]
        counted = np.bincount(weight, minlength=6)[:6]
        assert np.all(np.abs(counted - expected) < 5 * np.sqrt(expected))
    correlations = np.corrcoef(weights[:, ::2]) - np.eye(6)
    assert np.abs(correlations).max() < 5 / math.sqrt(100_000)


def test_weights_follow_from_seed_and_unit_alone() -> None:
    units = np.array([5, -7, 2**62], np.int64)
    longer, other = weights_of(units, Resample(40)), weights_of(units, Resample(40, seed=1))
    np.testing.assert_array_equal(longer[:9], weights_of(units, Resample(9)))
    np.testing.assert_array_equal(longer[:, ::-1], weights_of(units[::-1], Resample(40)))
    assert (longer != other).any()


def test_ties_count_one_half_and_equal_scores_have_no_spread() -> None:
    label, _, units = rows_of_users()
    flat = np.full(len(label), 0.25, np.float32)
    np.testing.assert_array_equal(measured(label, flat, units).replicates["auc"], np.full(25, 0.5))


def test_a_replicate_without_clicks_has_no_auc_and_is_left_out() -> None:
    label, probability = np.zeros(40, np.float32), np.linspace(0.1, 0.9, 40).astype(np.float32)
    label[30] = 1.0
    units = np.arange(40, dtype=np.int64)
    drawn = weights_of(units, Resample(200))[:, 30]
    actual = measured(label, probability, units, Resample(200)).replicates
    np.testing.assert_array_equal(np.isnan(actual["auc"]), drawn == 0)
    assert np.isfinite(actual["log_loss"]).all()
    assert interval(0.0, actual["auc"], actual["auc"] - 0.1, 0.95) is None  # more than a third is undefined
    some = np.where(np.arange(200) < 10, np.nan, 0.7)
    kept = interval(0.1, some, np.full(200, 0.6), 0.95)
    assert kept is not None
    assert (kept.replicates, kept.low) == (190, pytest.approx(0.1))


def test_the_interval_holds_the_true_difference_about_as_often_as_it_says() -> None:
    """Two scores of one normal signal: of 200 samples, 90% intervals hold the true difference in about 180.

    AUC of N(d, 1) against N(0, 1) is Φ(d / √2). Users have effects of their own, so rows of a user are not
    independent.
    """
    draw, held, trials, users, rows = np.random.default_rng(4), 0, 200, 80, 640

    def auc_at(signal: float, noise: float) -> float:
        return 0.5 * (1 + math.erf(signal / math.sqrt(2 * noise) / math.sqrt(2)))

    true = auc_at(1.0, 1 + 0.25 + 0.5) - auc_at(1.0, 1 + 0.25 + 1.0)
    for trial in range(trials):
        user = np.repeat(np.arange(users), rows // users)
        label = (draw.random(rows) < 0.4).astype(np.float32)
        signal = label + draw.normal(size=rows) + 0.5 * draw.normal(size=users)[user]
        ours, theirs = (signal + spread * draw.normal(size=rows) for spread in (math.sqrt(0.5), 1.0))
        hashed = (user * 1_000_003 + trial * 7_919).astype(np.int64)
        resample = Resample(200, seed=trial)
        aucs, points = [], []
        for score in (ours, theirs):
            probability = (1 / (1 + np.exp(-score))).astype(np.float32)
            actual = measured(label, probability, hashed, resample)
            aucs.append(actual.replicates["auc"])
            points.append(actual.facts["auc"])
        between = interval(points[0] - points[1], aucs[0], aucs[1], 0.9)
        assert between is not None
        held += between.low <= true <= between.high
    assert 0.84 * trials <= held <= 0.96 * trials  # three standard deviations of a binomial of 0.9


def test_resampling_by_user_is_wider_than_by_row_where_rows_of_a_user_agree() -> None:
    draw = np.random.default_rng(8)
    user = np.repeat(np.arange(60), 50)
    label = (draw.random(len(user)) < (0.1 + 0.8 * draw.random(60))[user]).astype(np.float32)
    probability = (0.05 + 0.9 * draw.random(60))[user].astype(np.float32)
    by_user = measured(label, probability, user.astype(np.int64), Resample(200)).replicates["auc"]
    by_row = measured(label, probability, np.arange(len(user), dtype=np.int64), Resample(200)).replicates[
        "auc"
    ]
    assert by_user.std() > 2 * by_row.std()


def test_through_spark(spark: SparkSession) -> None:
    label, probability, units = rows_of_users(1_500)
    rows = [(float(a), float(b), int(c)) for a, b, c in zip(label, probability, units, strict=True)]
    frame = spark.createDataFrame(rows, f"label float, probability float, {UNIT} long").repartition(5)
    expected = measured(label, probability, units)
    for form in (as_frame, as_table):
        actual = measure_predictions(form(frame), RESAMPLE)
        for name in ("auc", "log_loss"):
            np.testing.assert_array_equal(actual.replicates[name], expected.replicates[name])
        assert actual.facts == expected.facts
    without = measure_predictions(frame.drop(UNIT).withColumn("more", F.lit(1)))
    assert without.facts == expected.facts
    assert not len(without.replicates["auc"])


def means_of(
    units: NDArray[np.int64], hits: NDArray[np.int64], gains: NDArray[np.int64], parts: NDArray[np.int64]
) -> dict[str, NDArray[np.float64]]:
    """The replicates of two means, of users divided into partitions."""
    sums = [
        reduce_means(
            units[parts == part], {"hit": hits[parts == part], "gain": gains[parts == part]}, RESAMPLE
        )
        for part in np.unique(parts)
    ]
    return combine_means(sums, {"hit": 1, "gain": 1_000})


def test_each_mean_equals_the_mean_of_repeated_users_in_any_partitions() -> None:
    draw = np.random.default_rng(4)
    units = draw.integers(-(2**63), 2**63 - 1, 70)
    hits, gains = draw.integers(0, 2, 70), draw.integers(0, 1_001, 70)
    actual = means_of(units, hits, gains, draw.integers(0, 5, 70))
    for replicate, weight in enumerate(weights_of(units, RESAMPLE)):
        again = np.repeat(np.arange(70), weight)
        assert actual["hit"][replicate] == pytest.approx(hits[again].mean(), abs=1e-12)
        assert actual["gain"][replicate] == pytest.approx(gains[again].mean() / 1_000, abs=1e-12)
    whole = means_of(units, hits, gains, np.zeros(70, np.int64))
    for name, replicates in whole.items():
        np.testing.assert_array_equal(replicates, actual[name])


def test_means_of_users_who_were_not_drawn_are_unknown() -> None:
    one = np.array([12], np.int64)
    replicates = means_of(one, one, one, one)["hit"]
    drawn = np.array([weights[0] for weights in draw_weights(one, RESAMPLE)])
    assert 0 < (drawn == 0).sum() < len(drawn)
    np.testing.assert_array_equal(np.isnan(replicates), drawn == 0)
    assert interval(0.0, replicates, replicates, 0.95) is None


def test_the_interval_of_a_difference_of_means_contains_the_truth() -> None:
    """Two models hit with probabilities 0.5 and 0.42, for the same users; 95% of the intervals have -0.08."""
    covered, worlds = 0, 200
    for world in range(worlds):
        draw = np.random.default_rng(world)
        units = draw.integers(-(2**63), 2**63 - 1, 300)
        easy = draw.random(300)
        hits = [(easy + 0.3 * draw.random(300) < limit + 0.15).astype(np.int64) for limit in (0.5, 0.42)]
        means = [
            combine_means([reduce_means(units, {"hit": hit}, Resample(200, seed=world))], {"hit": 1})["hit"]
            for hit in hits
        ]
        between = interval(hits[1].mean() - hits[0].mean(), means[1], means[0], 0.95)
        assert between is not None
        covered += between.low <= -0.08 <= between.high
    assert 0.9 <= covered / worlds <= 0.99
