"""PSI against numbers computed by hand, its properties, and its bins."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrics.psi import (
    NULL,
    OTHER,
    Binned,
    above_noise,
    bin_bounds,
    bin_keys,
    bin_names,
    bin_numbers,
    drift_of,
    psi_noise,
    psi_terms,
)

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def test_psi_of_a_hand_computed_example() -> None:
    # (1, 8) and (5, 4) with half a cell more in each bin: shares 0.15, 0.85 and 0.55, 0.45.
    # 0.40 ln(55/15) + (-0.40) ln(45/85) = 0.40 * 1.299283 + 0.40 * 0.635989
    terms = psi_terms([1, 8], [5, 4])
    np.testing.assert_allclose(terms, [0.519713, 0.254396], atol=1e-6)
    assert terms.sum() == pytest.approx(0.774109, abs=1e-6)


def test_psi_of_many_cells_is_the_textbook_formula() -> None:
    # 50, 30, 20 per cent against 30, 40, 30: -0.2 ln 0.6 + 0.1 ln(4/3) + 0.1 ln 1.5
    terms = psi_terms([50_000_000, 30_000_000, 20_000_000], [30_000_000, 40_000_000, 30_000_000])
    assert terms.sum() == pytest.approx(0.102165 + 0.028768 + 0.040547, abs=1e-6)


def test_a_bin_that_empties_counts_half_a_cell() -> None:
    # shares (10.5/21, 10.5/21) and (20.5/21, 0.5/21)
    expected = (20.5 - 10.5) / 21 * math.log(20.5 / 10.5) + (0.5 - 10.5) / 21 * math.log(0.5 / 10.5)
    assert psi_terms([10, 10], [20, 0]).sum() == pytest.approx(expected, rel=1e-12)


COUNTS = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=30).filter(
    lambda pairs: any(t for t, _ in pairs) and any(d for _, d in pairs)
)


@given(COUNTS)
def test_psi_is_symmetric_and_never_negative_and_ignores_order_and_empty_bins(
    pairs: list[tuple[int, int]],
) -> None:
    train, day = zip(*pairs, strict=True)
    psi = psi_terms(train, day).sum()
    assert (psi_terms(train, day) >= 0).all()
    assert psi == pytest.approx(psi_terms(day, train).sum(), rel=1e-9, abs=1e-12)
    assert psi == pytest.approx(psi_terms(train[::-1], day[::-1]).sum(), rel=1e-9, abs=1e-12)
    assert psi == pytest.approx(psi_terms([*train, 0], [*day, 0]).sum(), rel=1e-9, abs=1e-12)
    assert psi_terms(train, train).sum() == 0


@pytest.mark.parametrize("train, day", [([0, 0], [1, 2]), ([1, 2], [0, 0]), ([1], [1, 2])])
def test_psi_refuses_what_it_cannot_compare(train: list[int], day: list[int]) -> None:
    with pytest.raises(ValueError, match="same bins"):
        psi_terms(train, day)


def test_noise_is_what_samples_of_one_distribution_exceed_once_in_a_thousand() -> None:
    draw = np.random.default_rng(5)
    shares = np.array([0.4, 0.2, 0.1, 0.1, 0.1, 0.1])
    train, day = draw.multinomial(6000, shares, 4000), draw.multinomial(1000, shares, 4000)
    psis = np.array([psi_terms(e, a).sum() for e, a in zip(train, day, strict=True)])
    noise = psi_noise(6, 6000, 1000)
    assert np.quantile(psis, 0.98) < noise < psis.max() * 1.3
    assert (psis > noise).mean() < 0.004
    # χ² with 5 degrees of freedom has its 99.9% quantile at 20.515; the approximation is within two per cent
    assert noise == pytest.approx((1 / 6000 + 1 / 1000) * 20.515, rel=0.02)


def test_bins_of_names_conserve_cells() -> None:
    binned = bin_names([("a", 50, 10), ("b", 20, 0)], 100, 30, 5, 7)
    assert binned == Binned(("a", "b", OTHER, NULL), (50, 20, 30, 5), (10, 0, 20, 7))


def _histogram(values: list[float]) -> dict[int, int]:
    keys, counts = np.unique(bin_keys(np.array(values, np.float64)), return_counts=True)
    return dict(zip(keys.tolist(), counts.tolist(), strict=True))


@given(st.lists(FINITE, max_size=60), st.lists(FINITE, max_size=60), st.integers(0, 5), st.integers(0, 5))
def test_bins_of_numbers_conserve_cells(
    train: list[float], day: list[float], train_nulls: int, day_nulls: int
) -> None:
    binned = bin_numbers(_histogram(train), _histogram(day), train_nulls, day_nulls)
    assert sum(binned.train) == len(train) + train_nulls
    assert sum(binned.day) == len(day) + day_nulls
    assert (binned.labels[-1], binned.train[-1], binned.day[-1]) == (NULL, train_nulls, day_nulls)
    assert len(binned.labels) == len(binned.train) == len(binned.day) <= 13


def test_bins_of_numbers_are_tenths_of_the_training_window() -> None:
    draw = random.Random(3)
    values = [draw.gauss(0, 100) for _ in range(20_000)]
    binned = bin_numbers(_histogram(values), _histogram(values[:5000]), 0, 0)
    assert len(binned.train) == 13
    assert binned.train[0] == binned.train[-2] == 0  # below and above the window's range
    assert all(1400 < count < 2600 for count in binned.train[1:-2])
    drift = drift_of(binned)
    assert drift is not None
    assert drift.psi < drift.noise
    assert drift.psi_above_noise == 0.0


def test_a_constant_that_changes_is_seen_as_drift() -> None:
    drift = drift_of(bin_numbers({**_histogram([7.0] * 1000)}, _histogram([9.0] * 1000), 0, 0))
    assert drift is not None
    assert drift.psi > 10
    assert drift.psi_above_noise == drift.psi
    assert (drift.moved_train_share, drift.moved_day_share) in {(1.0, 0.0), (0.0, 1.0)}


def test_a_number_that_takes_many_tenths_has_a_bin_of_its_own() -> None:
    binned = bin_numbers(_histogram([0.0] * 80 + [float(n) for n in range(1, 21)]), _histogram([0.0]), 0, 0)
    # cells before zero end in the first tenth; the other 20 lie in the last two
    assert binned.train == (0, 80, 10, 10, 0, 0)
    assert binned.day == (0, 1, 0, 0, 0, 0)


def test_a_psi_equal_to_its_noise_is_none_above_it() -> None:
    assert (above_noise(0.2, 0.2), above_noise(0.3, 0.2)) == (0.0, 0.3)


def test_drift_is_none_where_one_side_has_no_cell() -> None:
    assert drift_of(bin_numbers({}, _histogram([1.0]), 0, 0)) is None
    assert drift_of(bin_names([], 5, 0, 0, 0)) is None


def test_drift_names_the_bin_that_moved_most() -> None:
    drift = drift_of(Binned(("a", "b", NULL), (500, 490, 10), (500, 100, 400)))
    assert drift is not None
    assert (drift.moved, drift.moved_train_share, drift.moved_day_share) == (NULL, 0.01, 0.4)


@settings(max_examples=100)
@given(FINITE, FINITE)
def test_keys_are_in_the_order_of_numbers_and_bounds_hold_them(a: float, b: float) -> None:
    (key_a, key_b) = bin_keys(np.array([a, b])).tolist()
    if a < b:
        assert key_a <= key_b
    low, high = bin_bounds(key_a)
    if abs(a) > 1e-300:
        assert low <= a < high if a > 0 else low < a <= high
        inner, outer = sorted((abs(low), abs(high)))
        assert math.isinf(outer) or outer - inner <= inner / 16
    assert bin_keys(np.array([-a])).tolist() == [-key_a]


def test_small_integers_have_a_bin_each() -> None:
    keys = bin_keys(np.arange(-31, 32, dtype=np.float64))
    assert len(set(keys.tolist())) == 63
    assert bin_bounds(int(keys[31])) == (0.0, 0.0)
    extremes = bin_keys(np.array([5e-324, 1.7976931348623157e308, float(2**63)]))
    assert (extremes > 0).all()
