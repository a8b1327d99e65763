"""The true probabilities against enumerations by the generator's definition, and against its draws."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from datetime import date

import numpy as np
import pytest
from numpy.testing import assert_allclose

from conf.types import Generate
from etl.synthetic.click_probability import (
    BY_NAME,
    INTERACTIONS,
    LEVEL_SLOPES,
    LOG_SLOPES,
    drifting_normals,
    normals,
    probability_of,
)
from etl.synthetic.impressions import ClickWorld, draw_impressions, world_of_day
from etl.synthetic.truth import DayTruth, ExpectedClicks, Exposure

DAY = date(2026, 1, 8)
CELLS_A_LOGIT = 1024
LOGITS = np.arange(-24 * CELLS_A_LOGIT, 16 * CELLS_A_LOGIT) / CELLS_A_LOGIT

Outcomes = list[tuple[float, float]]  # (probability, logit) of each outcome of a term


def _hours() -> list[float]:
    """The share of each three hours: the traffic of each hour is given in parts of 104."""
    by_hour = [2, 1, 1, 1, 1, 2, 3, 4, 5, 5, 5, 5, 6, 6, 5, 5, 5, 6, 7, 8, 8, 7, 5, 3]
    return [sum(by_hour[hour : hour + 3]) / sum(by_hour) for hour in range(0, 24, 3)]


def _skewed(levels: int, power: float) -> list[float]:
    """The shares of floor(u ** power * levels) for a uniform u."""
    return [((code + 1) / levels) ** (1 / power) - (code / levels) ** (1 / power) for code in range(levels)]


def _context(name: str) -> list[tuple[float, int]]:
    """(share, value) of a column of the context."""
    if name == "hour_bucket":
        return list(zip(_hours(), range(8), strict=True))
    if name == "page_position":
        return list(zip(_skewed(20, 2), range(1, 21), strict=True))
    return [(share, code) for code, share in enumerate(_skewed(BY_NAME[name].levels, 1.5))]


def _terms(world: ClickWorld, missing: float, user: int, item: int) -> list[Outcomes]:
    """The outcomes of every term of the logit of one pair, from the formula in click.py."""

    def values(name: str) -> list[tuple[float, int]]:
        side = BY_NAME[name].side
        if side == "context":
            return _context(name)
        return [(1.0, int(world.users[name][user] if side == "user" else world.items[name][item]))]

    def with_missing(name: str) -> list[tuple[float, int]]:
        return [(missing, -1), *(((1 - missing) * share, value) for share, value in values(name))]

    terms: list[Outcomes] = [[(1.0, -4.4)]]
    for taste in INTERACTIONS:
        table = world.tastes[taste.name]
        pairs = itertools.product(with_missing(taste.left), with_missing(taste.right))
        terms.append([(one * two, float(table[left, right])) for (one, left), (two, right) in pairs])
    for name, slope in LEVEL_SLOPES.items():
        most = BY_NAME[name].levels - 1
        terms.append(
            [(p, 0.0 if value < 0 else slope * (value / most - 0.5)) for p, value in with_missing(name)]
        )
    for name, (slope, centre) in LOG_SLOPES.items():
        terms.append(
            [(p, 0.0 if v < 0 else slope * (math.log(1 + v) - centre)) for p, v in with_missing(name)]
        )
    return terms


def _mean_probability(terms: list[Outcomes]) -> float:
    """The mean of sigmoid over the distribution of the sum, which is kept in cells of 1/1024 logit."""
    distribution = np.zeros(len(LOGITS))
    distribution[np.searchsorted(LOGITS, 0.0)] = 1.0
    for outcomes in terms:
        added = np.zeros(len(LOGITS))
        for probability, logit in outcomes:
            cells = math.floor(logit * CELLS_A_LOGIT)
            upper = logit * CELLS_A_LOGIT - cells  # divided between two cells, so that the mean stays exact
            added += probability * (1 - upper) * np.roll(distribution, cells)
            added += probability * upper * np.roll(distribution, cells + 1)
        distribution = added
    return float(distribution @ (1 / (1 + np.exp(-LOGITS))))


@pytest.mark.parametrize("missing", [0.0, 0.02, 0.3])
def test_click_probability_is_the_mean_over_context_and_empty_fields(missing: float) -> None:
    world = world_of_day(Generate(users=20, items=12), DAY)
    clicks = ExpectedClicks(world, missing)
    for user in (0, 7, 19):
        actual = clicks.of_user(user)
        assert actual.shape == (12,)
        for item in (0, 5, 11):
            expected = _mean_probability(_terms(world, missing, user, item))
            assert actual[item] == pytest.approx(expected, abs=2e-7, rel=1e-5)


def test_shown_items_equal_an_enumeration_of_all_draws() -> None:
    config = Generate(users=30, items=4, cold_share=0.0)
    world, day = world_of_day(config, DAY), DAY.toordinal()
    ids = np.arange(4)
    buzz = drifting_normals(config.seed, "item/buzz", ids, day, 30)
    popularity = np.exp(0.8 * normals(config.seed, "item/quality", ids) + 0.5 * buzz)
    exposure = Exposure(world)
    for user in range(0, 30, 6):
        segment = world.users["user_segment"][user]
        taste = world.tastes["user_segment/item_category"][segment, world.items["item_category"]]
        drawn = popularity * np.exp(taste)
        drawn /= drawn.sum()
        appeal = sum(
            world.tastes[f"{left}/{right}"][world.users[left][user], world.items[right]]
            for left, right in (
                ("user_interest", "item_theme"),
                ("user_age_group", "item_brand_tier"),
                ("user_household", "item_price_band"),
                ("user_style", "item_colour"),
            )
        )
        weights = np.exp(1.2 * appeal)
        shown = np.zeros(4)
        for choice in itertools.combinations_with_replacement(range(4), 8):
            counts = Counter(choice)
            orders = math.factorial(8) / math.prod(math.factorial(n) for n in counts.values())
            probability = orders * math.prod(drawn[item] ** n for item, n in counts.items())
            total = sum(n * weights[item] for item, n in counts.items())
            for item, n in counts.items():
                shown[item] += probability * n * weights[item] / total
        assert_allclose(exposure.of_user(user), shown, rtol=1e-6)


def test_probabilities_are_those_of_the_rows_that_the_generator_draws() -> None:
    config = Generate(users=6, items=9, missing_share=0.1, rows_per_day=100, cold_share=0.0)
    world, truth = world_of_day(config, DAY), DayTruth(config, DAY.isoformat())
    rows = 400_000
    drawn = draw_impressions(world, np.random.default_rng(4), rows, (0.0, 1.0), config.missing_share)
    pair = drawn.values["user_id"] * 9 + drawn.values["item_id"]
    shown = np.bincount(pair, minlength=54).reshape(6, 9)
    summed = np.bincount(pair, probability_of(drawn.steps), minlength=54).reshape(6, 9)
    for user in range(6):
        true = truth.of_user(user)
        expected = rows * true.user_share * true.shown
        assert np.abs(shown[user] - expected).max() < 5 * np.sqrt(expected.max())
        assert (np.abs(shown[user] - expected) < 5 * np.sqrt(expected) + 1).all()
        often = shown[user] > 2000
        assert often.sum() >= 2
        means = summed[user][often] / shown[user][often]
        assert_allclose(true.clicked[often], means, rtol=0.05)


def test_no_list_has_more_hits_than_the_list_of_the_largest_products() -> None:
    config = Generate(users=4, items=8, rows_per_day=100, cold_share=0.0)
    world, truth = world_of_day(config, DAY), DayTruth(config, DAY.isoformat())
    days, rows = 20_000, 20
    drawn = draw_impressions(world, np.random.default_rng(8), days * rows, (0.0, 1.0), config.missing_share)
    # Rows are in the order of time. A shuffle gives each simulated day rows of all hours.
    day = np.random.default_rng(9).permutation(np.repeat(np.arange(days), rows))
    clicked = np.zeros((days, 4, 8), dtype=bool)
    at = drawn.labels == 1
    clicked[day[at], drawn.values["user_id"][at], drawn.values["item_id"][at]] = True
    for user in range(4):
        true = truth.of_user(user)
        best = tuple(sorted(np.argsort(-true.clicked * true.shown)[:3].tolist()))
        hit = {items: clicked[:, user, items].any(axis=1) for items in itertools.combinations(range(8), 3)}
        expected = 1 - (1 - true.user_share * (true.clicked * true.shown)[list(best)].sum()) ** rows
        assert hit[best].mean() == pytest.approx(expected, abs=5 * math.sqrt(expected / days))
        for items, hits in hit.items():
            lost = hits.astype(float) - hit[best]
            assert lost.mean() <= 4 * lost.std() / math.sqrt(days), items


@pytest.mark.parametrize("items", [9, 130])
def test_probabilities_of_a_user_do_not_depend_on_the_other_users(items: int) -> None:
    truth = DayTruth(Generate(users=300, items=items, missing_share=0.1), DAY.isoformat())
    users = np.random.default_rng(2).permutation(300)
    users = np.append(users, users[:3])  # a user may occur twice
    together = truth.of_users(users)
    assert together.user_shares.shape == (303,)
    assert together.clicked.shape == together.shown.shape == (303, items)
    assert together.clicked.dtype == together.shown.dtype == np.float64
    for row, user in enumerate(users.tolist()):
        alone = truth.of_user(user)
        assert together.user_shares[row] == alone.user_share
        assert_allclose(together.clicked[row], alone.clicked, rtol=0, atol=1e-9)
        assert_allclose(together.shown[row], alone.shown, rtol=1e-9)
    assert_allclose(together.shown.sum(axis=1), 1.0, atol=2e-6)
    nobody = truth.of_users(users[:0])
    assert nobody.user_shares.shape == (0,)
    assert nobody.clicked.shape == nobody.shown.shape == (0, items)


def test_keys_are_those_of_the_log() -> None:
    truth = DayTruth(Generate(users=50, items=20, layout="named"), DAY.isoformat())
    world = world_of_day(Generate(users=50, items=20), DAY)
    assert list(truth.users) == [f"u{code}" for code in world.users["user_id"]]
    assert list(truth.items) == [f"i{code}" for code in world.items["item_id"]]
    assert list(truth.items.values()) == list(range(20))


def test_a_log_of_displays_has_no_true_probabilities() -> None:
    with pytest.raises(ValueError, match="outbrain"):
        DayTruth(Generate(layout="outbrain"), DAY.isoformat())
