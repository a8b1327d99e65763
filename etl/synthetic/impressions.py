"""Draws the users, items and tastes of one day, and the impressions of the day.

An impression has a user, a shown item, a context, and a label (1 for a click).

Users, items and tastes depend only on the seed, the sizes and the date.

A taste is a table with one logit for each pair of categories of two columns. The ids of a day are consecutive
integers. Each day, a share `cold_share` of the ids is new, and the same number of the lowest ids is removed.
The ids of a day depend only on the date, and not on the first day of the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

import numpy as np
from numpy.typing import NDArray

from conf.types import Generate
from etl.synthetic.click_probability import (
    BY_NAME,
    FEATURES,
    INTERACTIONS,
    MISSING,
    Tastes,
    click_steps,
    drifting_normals,
    normals,
    probability_of,
    tastes_of_day,
    uniforms,
)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_BUZZ_PERIOD_DAYS = 30
_ACTIVITY_SPREAD = 0.6
_QUALITY_SPREAD, _BUZZ_SPREAD = 0.8, 0.5
_BROWSING_FOCUS = 1.0  # A taste multiplies the frequency of a category by exp(_BROWSING_FOCUS * taste).
_SKEW = 1.2  # Exponent that makes lower codes of user and item columns more frequent.


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
    """Returns the popularity and the columns of a day's items.

    The distribution of popularity is long-tailed. The popularity of an item is the product of a constant
    factor (its quality) and a factor that changes from day to day.
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


# The code below draws impressions. An impression has a user, a shown item, a context, and a label (1 for a
# click).

_SECONDS_A_DAY = 86_400
_HOUR_SHARES = np.array(
    [2, 1, 1, 1, 1, 2, 3, 4, 5, 5, 5, 5, 6, 6, 5, 5, 5, 6, 7, 8, 8, 7, 5, 3], dtype=np.float64
)
_HOUR_EDGES = np.concatenate([[0.0], np.cumsum(_HOUR_SHARES) / _HOUR_SHARES.sum()])
CHOICES = 8  # Number of items that are drawn for an impression; one of them is shown.
CHOICE_FOCUS = 1.2  # Weight of the tastes INTERACTIONS[1:] in the choice of the shown item.
_BUCKET_HOURS = 3
_MAX_POSITION, _POSITION_SKEW = 20, 2  # The exponent makes lower positions more frequent.
_CONTEXT_SKEW = 1.5  # Exponent that makes lower codes of context columns more frequent.
_CONTEXT_CATEGORIES = ("device", "referrer", "placement", "connection", "browser")


@dataclass(frozen=True)
class DrawnImpressions:
    """Impressions of one day, ordered by time. A row is one impression.

    Attributes:
        values: maps each column to an array (rows,) of its values. The value of an empty field is MISSING.
        seconds: (rows,) seconds since midnight UTC.
        labels: (rows,) 1 for a click, otherwise 0.
        steps: (rows,) index of each row's click probability, as `click_steps` returns it.
    """

    values: dict[str, Ints]
    seconds: Ints
    labels: Ints
    steps: Ints

    def __len__(self) -> int:
        return len(self.labels)


def draw_impressions(
    world: ClickWorld, rng: np.random.Generator, rows: int, window: tuple[float, float], missing_share: float
) -> DrawnImpressions:
    """Draws the impressions in one time interval of a day.

    Args:
        world: users, items and tastes of the day.
        rng: random generator for the rows of the block.
        rows: number of impressions.
        window: the start and the end of the time interval, as quantiles of the day's traffic. The quantile
            0.5 is the time before which half of the day's impressions occur.
        missing_share: probability that a field is left empty. Keys are never empty. The click depends only on
            the written row, so a value that is left empty does not influence the click.
    """
    low, high = window
    quantiles = np.sort(low + (high - low) * rng.random(rows))
    seconds = seconds_of_day(quantiles)
    users = _pick(world.user_edges, rng.random(rows))
    items = _shown_items(world, rng, users)
    values = {name: column[users] for name, column in world.users.items()}
    values |= {name: column[items] for name, column in world.items.items()}
    values |= _context(rng, seconds)
    for column in FEATURES:
        if column.kind != "key":
            values[column.name] = np.where(rng.random(rows) < missing_share, MISSING, values[column.name])
    steps = click_steps(world.tastes, values)
    labels = (rng.random(rows) < probability_of(steps)).astype(np.int64)
    return DrawnImpressions(values, seconds, labels, steps)


def seconds_of_day(quantiles: NDArray[np.float64]) -> Ints:
    """Converts n quantiles of the day's traffic, in [0, 1), to seconds since midnight, shape (n,).

    The quantile 0.5 is the time before which half of the day's rows occur. Evenings have more traffic than
    nights.
    """
    seconds = np.interp(quantiles, _HOUR_EDGES, np.arange(25) * 3600.0).astype(np.int64)
    return np.minimum(seconds, _SECONDS_A_DAY - 1)


def _pick(edges: NDArray[np.float64], chance: NDArray[np.float64]) -> Ints:
    return np.minimum(np.searchsorted(edges, chance, side="right"), len(edges) - 1)


def _shown_items(world: ClickWorld, rng: np.random.Generator, users: Ints) -> Ints:
    """Returns the index of the item that is shown in each impression, shape (rows,).

    For each impression, CHOICES items are drawn, but only one of them is shown. Each draw selects a category
    by the taste of the user's segment, then an item of this category by popularity. The user's other tastes
    add up to a weight for each drawn item. A drawn item is shown with the probability that a softmax of these
    weights gives. The shown item is drawn by Gumbel-max: the argmax of weight + noise is a draw from the
    softmax.
    """
    shape = (len(users), CHOICES)
    segments = world.users["user_segment"][users]
    category = (rng.random(shape)[:, :, None] >= world.category_edges[segments][:, None, :]).sum(axis=2)
    low, high = world.category_bounds[category], world.category_bounds[category + 1]
    index = _pick(world.item_edges, low + (high - low) * rng.random(shape))
    drawn = world.items_by_category[index]  # (rows, CHOICES)
    appeal = rng.gumbel(size=shape)
    for taste in INTERACTIONS[1:]:
        if taste.left in world.users:
            left, right = world.users[taste.left][users], world.items[taste.right][drawn]
            appeal += CHOICE_FOCUS * world.tastes[taste.name][left[:, None], right]
    return np.asarray(np.take_along_axis(drawn, appeal.argmax(axis=1)[:, None], axis=1)[:, 0])


def _context(rng: np.random.Generator, seconds: Ints) -> dict[str, Ints]:
    rows = len(seconds)
    drawn = {
        name: (rng.random(rows) ** _CONTEXT_SKEW * BY_NAME[name].levels).astype(np.int64)
        for name in _CONTEXT_CATEGORIES
    }
    views = rng.geometric(0.15, rows)
    return {
        "hour_bucket": seconds // (_BUCKET_HOURS * 3600),
        "page_position": 1 + (rng.random(rows) ** _POSITION_SKEW * _MAX_POSITION).astype(np.int64),
        "session_seconds": np.rint(views * rng.exponential(30.0, rows)).astype(np.int64),
        "session_views": views,
        **drawn,
    }


def context_shares() -> dict[str, tuple[Ints, Floats]]:
    """Returns the distribution of the context over all impressions of a day.

    The result maps a column to two arrays: the values of the column, and their probabilities. Empty fields
    are not included. The columns are drawn independently of each other, of the user and of the item. The
    result has only the columns that `_context` draws from few values: the categories and `page_position`.
    """
    shares = {}
    for name in _CONTEXT_CATEGORIES:
        levels = BY_NAME[name].levels
        shares[name] = (np.arange(levels), _power_shares(levels, _CONTEXT_SKEW))
    hours = _HOUR_SHARES.reshape(-1, _BUCKET_HOURS).sum(axis=1) / _HOUR_SHARES.sum()
    positions = (1 + np.arange(_MAX_POSITION), _power_shares(_MAX_POSITION, _POSITION_SKEW))
    return {**shares, "hour_bucket": (np.arange(len(hours)), hours), "page_position": positions}


def _power_shares(levels: int, power: float) -> Floats:
    """Returns the probability of each integer below `levels`.

    Integers are drawn as floor(u ** power * levels), where u is uniformly distributed in [0, 1).
    """
    return np.diff((np.arange(levels + 1) / levels) ** (1 / power))
