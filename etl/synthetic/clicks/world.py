"""Draws the users, items and tastes of one day. They depend only on the seed, the sizes and the date.

A taste is a table with one logit for each pair of categories of two columns. The ids of a day are consecutive
integers. Each day, a share `cold_share` of the ids is new, and the same number of old ids, the lowest, is
removed. So the ids of a day do not depend on the first day of the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

import numpy as np
from numpy.typing import NDArray

from conf.types import Generate
from etl.synthetic.clicks.click import Tastes, tastes_of_day
from etl.synthetic.clicks.columns import BY_NAME
from etl.synthetic.clicks.draws import drifting_normals, normals, uniforms

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_BUZZ_PERIOD_DAYS = 30
_ACTIVITY_SPREAD = 0.6
_QUALITY_SPREAD, _BUZZ_SPREAD = 0.8, 0.5
_BROWSING_FOCUS = 1.0  # A segment's users see a category with a probability factor exp(weight * taste).
_SKEW = 1.2  # Lower codes of a category are more frequent.


@dataclass(frozen=True)
class ClickWorld:
    """The users, items and tastes of one day.

    Attributes:
        day: the date as `date.toordinal` returns it.
        tastes: maps the name of each taste to its table (`tastes_of_day`).
        users: maps each column to an array with one value per user.
        items: maps each column to an array with one value per item.
        user_edges: (users,) cumulative probabilities with which the users are drawn for an impression. The
            last one is 1.
        category_edges: (segments, categories) cumulative probabilities with which a user of a segment sees
            the categories.
        items_by_category: (items,) indices of the items, sorted by category.
        item_edges: (items,) cumulative popularity of the items, in the order of `items_by_category`.
        category_bounds: (categories + 1,) the cumulative popularity at which each category begins.
        new_users: first id of the users that are new on this day.
        new_items: first id of the items that are new on this day.
    """

    day: int
    tastes: Tastes
    users: dict[str, Ints]
    items: dict[str, Ints]
    user_edges: Floats
    category_edges: Floats
    items_by_category: Ints
    item_edges: Floats
    category_bounds: Floats
    new_users: int
    new_items: int


def world_of_day(config: Generate, on: date) -> ClickWorld:
    """Draws the users, items and tastes of one day."""
    day = on.toordinal()
    tastes = tastes_of_day(config.seed, day)
    user_ids, new_users = window_of_day(config.users, config.cold_share, day)
    item_ids, new_items = window_of_day(config.items, config.cold_share, day)
    activity = np.exp(_ACTIVITY_SPREAD * normals(config.seed, "user/activity", user_ids))
    popularity, items = _items(config.seed, item_ids, day)
    order = np.argsort(items["item_category"], kind="stable")
    cumulated = np.cumsum(popularity[order])
    starts = np.searchsorted(items["item_category"][order], np.arange(BY_NAME["item_category"].levels + 1))
    bounds = np.concatenate([[0.0], cumulated])[starts]
    return ClickWorld(
        day=day,
        tastes=tastes,
        users=_users(config.seed, user_ids, activity, day),
        items=items,
        user_edges=_edges(activity),
        category_edges=_edges(_category_chances(tastes, np.diff(bounds))),
        items_by_category=order,
        item_edges=cumulated,
        category_bounds=bounds,
        new_users=new_users,
        new_items=new_items,
    )


def window_of_day(size: int, cold_share: float, day: int) -> tuple[Ints, int]:
    """Returns the `size` ids of a day, and the first of these ids that is new on this day.

    `day` is the date as `date.toordinal` returns it.
    """
    new_per_day = round(size * cold_share)
    start = day * new_per_day
    return np.arange(start, start + size), start + size - new_per_day


def _edges(weights: Floats) -> Floats:
    cumulated = np.cumsum(weights, axis=-1)
    return np.asarray(cumulated / cumulated[..., -1:])


def _codes(seed: int, name: str, ids: Ints) -> Ints:
    return (uniforms(seed, name, ids) ** _SKEW * BY_NAME[name].levels).astype(np.int64)


def _rounded(values: Floats) -> Ints:
    return np.maximum(np.rint(values), 0).astype(np.int64)


def _users(seed: int, ids: Ints, activity: Floats, day: int) -> dict[str, Ints]:
    age = 16 + (uniforms(seed, "user_age", ids) * 64).astype(np.int64)
    drawn = ("segment", "interest", "household", "plan", "region", "style", "language", "channel")
    return {
        "user_id": ids,
        "user_days_registered": _rounded(np.exp(5.0 + normals(seed, "user_days_registered", ids))),
        "user_visits": _rounded(8.0 * activity),
        "user_spend_cents": _rounded(np.exp(7.0 + normals(seed, "user_spend_cents", ids)) * activity),
        "user_reviews_written": _rounded(np.exp(normals(seed, "user_reviews_written", ids))),
        "user_age": age,
        "user_age_group": (age - 16) // 8,
        **{f"user_{name}": _codes(seed, f"user_{name}", ids) for name in drawn},
    }


def _items(seed: int, ids: Ints, day: int) -> tuple[Floats, dict[str, Ints]]:
    """Returns the popularity of the items of a day, and their columns.

    The popularity of an item is long-tailed. It is the product of a constant factor, the quality, and a
    factor that changes from day to day.
    """
    quality = normals(seed, "item/quality", ids)
    buzz = drifting_normals(seed, "item/buzz", ids, day, _BUZZ_PERIOD_DAYS)
    popularity = np.exp(_QUALITY_SPREAD * quality + _BUZZ_SPREAD * buzz)
    rank = np.argsort(np.argsort(popularity, kind="stable"), kind="stable")
    price = np.exp(7.0 + normals(seed, "item_price_cents", ids))
    price_rank = uniforms(seed, "item_price_band", ids)
    drawn = ("category", "theme", "brand_tier", "origin", "colour", "seller", "material")
    columns = {
        "item_id": ids,
        "item_price_cents": _rounded(price),
        "item_reviews": _rounded(np.exp(3.0 + quality + 0.3 * normals(seed, "item_reviews", ids))),
        "item_rating_tenths": np.clip(
            _rounded(40.0 + 4.0 * normals(seed, "item_rating_tenths", ids)), 10, 50
        ),
        "item_days_listed": _rounded(np.exp(4.0 + normals(seed, "item_days_listed", ids))),
        "item_weight_grams": _rounded(np.exp(6.0 + normals(seed, "item_weight_grams", ids))),
        "item_price_band": (price_rank * BY_NAME["item_price_band"].levels).astype(np.int64),
        "item_popularity": rank * BY_NAME["item_popularity"].levels // len(ids),
        **{f"item_{name}": _codes(seed, f"item_{name}", ids) for name in drawn},
    }
    return popularity, columns


def _category_chances(tastes: Tastes, category_popularity: Floats) -> Floats:
    """Returns the relative frequencies with which users of a segment see items of a category.

    The shape is (segments, categories).
    """
    taste = tastes["user_segment/item_category"][:-1, :-1]
    return np.asarray(np.exp(_BROWSING_FOCUS * taste) * category_popularity)
