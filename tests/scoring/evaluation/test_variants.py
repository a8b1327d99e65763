"""Figures of the variants of an experiment against pandas, and the guard rail over several days."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from conf.stage_types import ServingExperiment
from metrics.bootstrap import Resample
from scoring.evaluation.experiment_measures import (
    SUMS,
    Sums,
    add_days,
    compare_variants,
    from_table,
    sample_ratio_p,
    sample_ratios,
    stop_reason,
    sum_variants,
    to_table,
)

K = 4
RESAMPLE = Resample(300, 7)


def lists_and_clicks(seed: int, users: int = 400) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Lists of 1 to K items, of which users of the treatment click fewer; some users have only clicks."""
    draw = np.random.default_rng(seed)
    entries, clicks = [], []
    for user in range(users):
        variant = "treatment" if draw.random() < 0.4 else "control"
        listed = draw.choice(30, draw.integers(1, K + 1), replace=False)
        entries += [(f"u{user}", place + 1, f"i{item}", variant) for place, item in enumerate(listed)]
        if draw.random() < 0.6:
            liked = listed if draw.random() < (0.3 if variant == "treatment" else 0.8) else range(30, 40)
            chosen = draw.choice(list(liked), min(len(liked), draw.integers(1, 3)), replace=False)
            clicks += [(f"u{user}", f"i{item}") for item in chosen]
    clicks += [("stranger", "i1")]
    return (
        pd.DataFrame(entries, columns=["user_key", "position", "item_key", "variant"]).astype(
            {"position": np.int32}
        ),
        pd.DataFrame(clicks, columns=["user_key", "item_key"]),
    )


def sums_of(lists: pd.DataFrame, clicks: pd.DataFrame) -> dict[str, Sums]:
    listed, clicked = (pa.Table.from_pandas(frame, preserve_index=False) for frame in (lists, clicks))
    return sum_variants(listed, clicked, K, RESAMPLE)


def by_pandas(lists: pd.DataFrame, clicks: pd.DataFrame) -> pd.DataFrame:
    """One row per user with a list: variant, clicked, hit, ndcg and mrr."""
    marked = lists.merge(clicks.assign(hit=1.0), on=["user_key", "item_key"], how="left").fillna({"hit": 0.0})
    marked["gain"] = marked.hit / np.log2(marked.position + 1)
    marked["rank"] = marked.hit / marked.position
    users = marked.groupby("user_key").agg(
        variant=("variant", "first"), hit=("hit", "max"), gain=("gain", "sum"), mrr=("rank", "max")
    )
    wanted = clicks.groupby("user_key").size().reindex(users.index).fillna(0).astype(int)
    ideal = np.cumsum(1 / np.log2(np.arange(K) + 2))
    users["clicked"] = wanted > 0
    users["ndcg"] = np.where(wanted > 0, users.gain / ideal[np.minimum(wanted, K).clip(1) - 1], 0.0)
    return users


@pytest.mark.parametrize("seed", [1, 2])
def test_figures_equal_pandas(seed: int) -> None:
    lists, clicks = lists_and_clicks(seed)
    compared = compare_variants(sums_of(lists, clicks), 0.9)
    users = by_pandas(lists, clicks)
    means = {}
    for variant, rows in users.groupby("variant"):
        of_clicked = rows[rows.clicked]
        means[variant] = {
            "users": len(rows),
            "clicked": len(of_clicked),
            "hit_rate": of_clicked.hit.mean(),
            "ndcg": of_clicked.ndcg.mean(),
            "mrr": of_clicked.mrr.mean(),
            "hit_user_share": rows.hit.mean(),
        }
    assert compared["variants"] == {name: pytest.approx(value, abs=1e-8) for name, value in means.items()}
    for measure in ("hit_rate", "ndcg", "mrr", "hit_user_share"):
        control, treatment = means["control"][measure], means["treatment"][measure]
        between = compared["differences"][measure]
        assert between["difference"] == pytest.approx(treatment - control, abs=1e-8)
        assert between["relative_difference"] == pytest.approx(treatment / control - 1, abs=1e-7)
        assert between["low"] < between["difference"] < between["high"] < 0


def test_intervals_have_the_width_of_the_normal_approximation() -> None:
    lists, clicks = lists_and_clicks(3, 2_000)
    between = compare_variants(sums_of(lists, clicks), 0.95)["differences"]["ndcg"]
    users = by_pandas(lists, clicks)
    of_variant = [rows.ndcg for _, rows in users[users.clicked].groupby("variant")]
    error = np.sqrt(sum(values.var() / len(values) for values in of_variant))
    assert between["high"] - between["low"] == pytest.approx(2 * 1.96 * error, rel=0.15)


def assert_equal(actual: dict[str, Sums], expected: dict[str, Sums]) -> None:
    assert list(actual) == list(expected) == ["control", "treatment"]
    for variant, sums in expected.items():
        for name in SUMS:
            np.testing.assert_array_equal(actual[variant][name], sums[name])


def test_sums_of_days_are_resamples_of_users_with_all_their_days() -> None:
    """The same lists on two days give the intervals of one day: users, not rows, are resampled."""
    lists, clicks = lists_and_clicks(5)
    sums = sums_of(lists, clicks)
    assert_equal(from_table(to_table(sums)), sums)
    twice = compare_variants(add_days([sums, from_table(to_table(sums))]), 0.95)
    once = compare_variants(sums, 0.95)
    assert twice["variants"]["control"]["users"] == 2 * once["variants"]["control"]["users"]
    for measure, between in once["differences"].items():
        assert twice["differences"][measure] == pytest.approx(between)
    assert add_days([]) == {}


def test_a_day_without_users_of_the_treatment_does_not_remove_it_from_the_total() -> None:
    busy = sums_of(*lists_and_clicks(8))
    lists, clicks = lists_and_clicks(5, 40)
    quiet = from_table(to_table(sums_of(lists[lists.variant == "control"], clicks)))
    assert list(quiet) == ["control"]
    total = add_days([busy, quiet])
    for name in SUMS:
        np.testing.assert_array_equal(total["treatment"][name], busy["treatment"][name])
        np.testing.assert_array_equal(total["control"][name], busy["control"][name] + quiet["control"][name])
    assert_equal(add_days([quiet, busy]), total)
    assert stop_reason(settings_of(), compare_variants(total, 0.95)) is not None


def test_a_variant_without_users_or_clicks_has_no_figures() -> None:
    lists, clicks = lists_and_clicks(6, 50)
    only = compare_variants(sums_of(lists[lists.variant == "control"], clicks), 0.95)
    assert list(only["variants"]) == ["control"]
    assert only["differences"] == {}
    nothing = compare_variants(sums_of(lists, clicks[:0]), 0.95)
    assert nothing["variants"]["treatment"]["ndcg"] is None
    assert list(nothing["differences"]) == ["hit_user_share"]
    assert nothing["differences"]["hit_user_share"]["relative_high"] is None


def settings_of(**values: Any) -> ServingExperiment:
    defaults = {"name": "x", "share": 0.4, "start": "2026-01-01", "stop_below": -0.05, "min_users": 50}
    return ServingExperiment.model_validate({**defaults, **values})


def test_the_guard_rail_needs_the_whole_interval_and_enough_users() -> None:
    total = compare_variants(sums_of(*lists_and_clicks(8)), 0.95)
    high = total["differences"]["ndcg"]["relative_high"]
    assert -1 < high < -0.05
    reason = stop_reason(settings_of(), total)
    assert reason is not None
    assert "stop_below=-0.05" in reason
    assert stop_reason(settings_of(stop_below=high - 1e-9), total) is None
    assert stop_reason(settings_of(stop_below=high + 1e-9), total) is not None
    assert stop_reason(settings_of(stop_below=None), total) is None
    assert stop_reason(settings_of(min_users=10_000), total) is None
    fewest = min(variant["clicked"] for variant in total["variants"].values())
    assert stop_reason(settings_of(min_users=fewest), total) is not None
    assert stop_reason(settings_of(min_users=fewest + 1), total) is None


def test_sample_ratio_p_is_uniform_for_a_right_share_and_small_for_a_wrong_one() -> None:
    draw = np.random.default_rng(9)
    treated = draw.binomial(5_000, 0.3, 2_000)
    p = np.array([sample_ratio_p(5_000 - count, int(count), 0.3) for count in treated])
    for level in (0.05, 0.5):
        assert abs((p < level).mean() - level) < 4 * np.sqrt(level * (1 - level) / len(p))
    assert sample_ratio_p(821, 1_179, 0.5) == pytest.approx(1.18e-15, rel=0.01)  # z = 8.0
    assert sample_ratio_p(0, 0, 0.5) is None
    figures = {
        "variants": {"control": {"users": 500, "clicked": 100}, "treatment": {"users": 500, "clicked": 10}}
    }
    ratios = sample_ratios(figures, 0.5)
    assert ratios["users"] == 1.0
    assert ratios["clicked"] is not None
    assert ratios["clicked"] < 0.001
