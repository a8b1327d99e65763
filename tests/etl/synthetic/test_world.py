"""The world of a day: new users and items, the spread of popularity, and tastes in what users see."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np

from conf.types import Generate
from etl.synthetic.click_probability import BY_NAME, FEATURES, click_steps, probability_of
from etl.synthetic.impressions import ClickWorld, DrawnImpressions, draw_impressions, world_of_day

DAY = date(2026, 1, 8)
DEFAULTS = Generate()
CONTEXT = {"hour_bucket": 6, "page_position": 1, "session_seconds": 90, "session_views": 3}


def _day(config: Generate, on: date, missing_share: float = 0.0) -> tuple[ClickWorld, DrawnImpressions]:
    world = world_of_day(config, on)
    rng = np.random.default_rng([config.seed, on.toordinal()])
    return world, draw_impressions(world, rng, config.rows_per_day, (0.0, 1.0), missing_share)


def test_values_lie_in_their_ranges() -> None:
    world, impressions = _day(DEFAULTS, DAY)
    for column in FEATURES:
        values = impressions.values[column.name]
        assert values.min() >= 0, column.name
        if column.kind == "category":
            assert values.max() < column.levels, column.name
            assert len(np.unique(values)) == column.levels, column.name
    assert set(world.users) | set(world.items) == {c.name for c in FEATURES if c.side != "context"}


def test_each_day_cold_share_of_users_and_items_is_new_and_the_others_keep_their_attributes() -> None:
    config = Generate(users=1000, items=200, cold_share=0.05)
    today, tomorrow = world_of_day(config, DAY), world_of_day(config, DAY + timedelta(days=1))
    for key, before, after, first_new, new_count in (
        ("user_id", today.users, tomorrow.users, tomorrow.new_users, 50),
        ("item_id", today.items, tomorrow.items, tomorrow.new_items, 10),
    ):
        new = np.setdiff1d(after[key], before[key])
        assert len(new) == new_count
        assert new.min() == first_new
        constant = [name for name in after if name != "item_popularity"]
        for name in constant:
            np.testing.assert_array_equal(after[name][:-new_count], before[name][new_count:], err_msg=name)


def test_no_new_users_or_items_without_a_cold_share() -> None:
    config = Generate(users=100, items=50, cold_share=0.0)
    today, later = world_of_day(config, DAY), world_of_day(config, DAY + timedelta(days=9))
    np.testing.assert_array_equal(today.users["user_id"], later.users["user_id"])
    assert today.new_users > today.users["user_id"].max()


def test_popularity_is_long_tailed_and_changes() -> None:
    shares = []
    for on in (DAY, DAY + timedelta(days=1), DAY + timedelta(days=15)):
        world, impressions = _day(Generate(cold_share=0.0), on)
        counts = np.bincount(impressions.values["item_id"] - world.items["item_id"][0], minlength=800)
        ranked = np.sort(counts)[::-1]
        assert ranked[:80].sum() > 0.3 * ranked.sum(), "a tenth of the items has a third of the views"
        assert ranked[400:].sum() < 0.25 * ranked.sum()
        assert np.count_nonzero(counts) > 790, "the tail is shown too"
        shares.append(np.log1p(counts))
    assert np.corrcoef(shares[0], shares[1])[0, 1] > 0.95
    assert np.corrcoef(shares[0], shares[2])[0, 1] < np.corrcoef(shares[0], shares[1])[0, 1]


def test_users_look_at_what_their_segment_likes() -> None:
    world, impressions = _day(DEFAULTS, DAY)
    taste = world.tastes["user_segment/item_category"]
    levels = BY_NAME["user_segment"].levels, BY_NAME["item_category"].levels
    seen = np.zeros(levels)
    np.add.at(seen, (impressions.values["user_segment"], impressions.values["item_category"]), 1)
    surprise = np.log(seen / np.outer(seen.sum(axis=1), seen.sum(axis=0)) * seen.sum())
    assert np.corrcoef(surprise.ravel(), taste[:-1, :-1].ravel())[0, 1] > 0.8


def test_users_come_several_times_a_day_with_traffic_by_the_hour() -> None:
    _, impressions = _day(DEFAULTS, DAY)
    users = len(np.unique(impressions.values["user_id"]))
    assert 12 <= len(impressions) / users <= 16
    by_hour = np.bincount(impressions.seconds // 3600, minlength=24)
    assert by_hour[20] > 3 * by_hour[3]
    assert (np.diff(impressions.seconds) >= 0).all()


def test_a_later_window_has_later_rows() -> None:
    world = world_of_day(DEFAULTS, DAY)
    parts = [
        draw_impressions(world, np.random.default_rng(part), 500, (part / 2, part / 2 + 0.5), 0.0)
        for part in (0, 1)
    ]
    assert parts[0].seconds.max() <= parts[1].seconds.min()


def test_lists_by_the_true_probability_beat_the_most_popular_items_the_day_after() -> None:
    """HR@10 of the oracle is twice that of the most popular items."""
    world, today = _day(DEFAULTS, DAY)
    _, tomorrow = _day(DEFAULTS, DAY + timedelta(days=1))
    items = world.items["item_id"]
    sample = np.arange(0, len(world.users["user_id"]), 4)
    shape = (len(sample), len(items))
    values = {name: np.repeat(column[sample], shape[1]) for name, column in world.users.items()}
    values |= {name: np.tile(column, shape[0]) for name, column in world.items.items()}
    context = [column.name for column in FEATURES if column.side == "context"]
    values |= {name: np.full(shape[0] * shape[1], CONTEXT.get(name, 0)) for name in context}
    order = np.argsort(-click_steps(world.tastes, values).reshape(shape), axis=1, kind="stable")
    users = world.users["user_id"][sample]
    best = dict(zip(users.tolist(), items[order[:, :10]].tolist(), strict=True))
    clicked, counts = np.unique(today.values["item_id"][today.labels == 1], return_counts=True)
    popular = clicked[np.argsort(-counts, kind="stable")[:10]].tolist()
    clicks: dict[int, set[int]] = {}
    hit = tomorrow.labels == 1
    for user, item in zip(
        tomorrow.values["user_id"][hit].tolist(), tomorrow.values["item_id"][hit].tolist(), strict=True
    ):
        clicks.setdefault(user, set()).add(item)
    measured = [user for user in best if user in clicks]
    oracle_rate = np.mean([bool(clicks[user] & set(best[user])) for user in measured])
    popular_rate = np.mean([bool(clicks[user] & set(popular)) for user in measured])
    assert oracle_rate >= 2.0 * popular_rate


def test_labels_follow_the_probability_with_fields_missing() -> None:
    _, impressions = _day(DEFAULTS, DAY, missing_share=0.3)
    expected = probability_of(impressions.steps)
    spread = np.sqrt((expected * (1 - expected)).sum())
    assert abs(impressions.labels.sum() - expected.sum()) < 4 * spread
