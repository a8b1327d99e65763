"""Draws impressions. An impression has a user, a shown item, a context, and a label (1 for a click)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etl.synthetic.clicks.click import INTERACTIONS, click_steps, probability_of
from etl.synthetic.clicks.columns import BY_NAME, FEATURES, MISSING
from etl.synthetic.clicks.world import ClickWorld

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_SECONDS_A_DAY = 86_400
_HOUR_SHARES = np.array(
    [2, 1, 1, 1, 1, 2, 3, 4, 5, 5, 5, 5, 6, 6, 5, 5, 5, 6, 7, 8, 8, 7, 5, 3], dtype=np.float64
)
_HOUR_EDGES = np.concatenate([[0.0], np.cumsum(_HOUR_SHARES) / _HOUR_SHARES.sum()])
CHOICES = 8  # Items that are drawn for an impression; one of them is shown.
CHOICE_FOCUS = 1.2  # Weight of the user's other tastes in the choice of the shown item.
_BUCKET_HOURS = 3
_MAX_POSITION, _POSITION_SKEW = 20, 2  # Lower positions are more frequent.
_CONTEXT_SKEW = 1.5  # Lower codes of a category of the context are more frequent.
_CONTEXT_CATEGORIES = ("device", "referrer", "placement", "connection", "browser")


@dataclass(frozen=True)
class DrawnImpressions:
    """Impressions of one day in the order of time. A row is one impression.

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
    """Converts quantiles of the day's traffic, in [0, 1), to seconds since midnight, shape (R,).

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
    by the taste of the user's segment, then an item of this category by popularity. The probability that one
    of the drawn items is shown is a softmax over the user's other tastes. The shown item is drawn by
    Gumbel-max: the argmax of weight + noise is a draw from the softmax.
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
    """Returns the probabilities of the integers below `levels` as values of floor(u ** power * levels).

    Here u is uniformly distributed in [0, 1).
    """
    return np.diff((np.arange(levels + 1) / levels) ** (1 / power))
