"""Draws displays. A display has a user, a document (a web page), several ads, and one clicked ad."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

import numpy as np
from numpy.typing import NDArray

from conf.types import Generate
from etl.synthetic.clicks.draws import normals
from etl.synthetic.outbrain.documents import (
    CATEGORIES,
    COUNTRIES,
    FIRST_DAY,
    NONE,
    PLATFORMS,
    PUBLISHERS,
    TOPICS,
    Ads,
    Documents,
    Users,
    draw_ads,
    draw_documents,
    draw_users,
)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LEAST_ADS, MOST_ADS = 2, 12
# Probability of a display of 2, 3, … 12 ads. The mean is five, so that rows_per_day / 5 displays have about
# rows_per_day rows.
_SIZE_CHANCES = np.array([14, 16, 19, 16, 12, 8, 5, 4, 3, 2, 1]) / 100
MEAN_ADS = float((_SIZE_CHANCES * np.arange(LEAST_ADS, MOST_ADS + 1)).sum())
_LIKENESS = {"topics": 2.0, "categories": 1.0}
_TASTES = {"topic": 0.7, "platform": 0.5, "country": 0.4}
_FRESHNESS = -0.25


@dataclass(frozen=True)
class World:
    """The documents, ads, users and tastes of one day.

    Attributes:
        tastes: maps a name to a table with the number that each pair of categories adds to the appeal of an
            ad.
        age: number of days from 2026-01-01 to this day, at least 0.
    """

    documents: Documents
    ads: Ads
    users: Users
    tastes: dict[str, Floats]
    age: int


@dataclass(frozen=True)
class Displays:
    """D displays with R rows. A row is one ad of one display.

    The rows of a display are consecutive, and displays are in the order of time.

    Attributes:
        display: (R,) index of the row's display in the block.
        size: (D,) number of ads of each display.
        quantile: (R,) the time of the display as a quantile of the day's traffic, in [0, 1).
        user: (R,) index of the user among the users of the day.
        document: (R,) index of the document among the documents of the day.
        ad: (R,) index of the ad among the ads of the day.
        appeal: (R,) the logit of the softmax from which the click is drawn.
        chance: (R,) the probability that the row's ad is the clicked ad of its display.
        clicked: (R,) 1 for the clicked ad of each display, otherwise 0.
    """

    display: Ints
    size: Ints
    quantile: Floats
    user: Ints
    document: Ints
    ad: Ints
    appeal: Floats
    chance: Floats
    clicked: Ints


def draw_world(config: Generate, on: date) -> World:
    """Draws the documents, ads, users and tastes of one day."""
    day = on.toordinal()
    sizes = {
        "topic": (TOPICS, TOPICS),
        "platform": (PLATFORMS, CATEGORIES),
        "country": (len(COUNTRIES), PUBLISHERS),
    }
    tastes = {
        name: strength
        * normals(config.seed, f"outbrain/{name}", np.arange(rows * columns)).reshape(rows, columns)
        for name, strength in _TASTES.items()
        for rows, columns in [sizes[name]]
    }
    age = max(day - FIRST_DAY.toordinal(), 0)
    return World(draw_documents(config), draw_ads(config, day), draw_users(config, day), tastes, age)


def draw_displays(
    world: World, rng: np.random.Generator, displays: int, window: tuple[float, float]
) -> Displays:
    """Draws the displays in one time interval of a day.

    Args:
        world: documents, ads, users and tastes of the day.
        rng: random generator for the rows of the block.
        displays: number of displays.
        window: the start and the end of the time interval, as quantiles of the day's traffic. The quantile
            0.5 is the time before which half of the day's displays occur.
    """
    low, high = window
    of_display = np.sort(low + (high - low) * rng.random(displays))
    size = LEAST_ADS + rng.choice(len(_SIZE_CHANCES), displays, p=_SIZE_CHANCES)
    user = _pick(rng, world.users.weights, displays)
    document = _pick(rng, world.documents.weights, displays)
    display = np.repeat(np.arange(displays), size)
    ad = _distinct_ads(rng, world.ads.weights, display)
    rows = len(display)
    appeal = _appeal(world, user[display], document[display], ad)
    starts = np.cumsum(size) - size
    drawn = appeal + rng.gumbel(size=rows)
    best = np.maximum.reduceat(drawn, starts)[display]
    raised = np.exp(appeal)
    return Displays(
        display=display,
        size=size,
        quantile=of_display[display],
        user=user[display],
        document=document[display],
        ad=ad,
        appeal=appeal,
        chance=raised / np.add.reduceat(raised, starts)[display],
        clicked=(drawn == best).astype(np.int64),
    )


def _pick(rng: np.random.Generator, weights: Floats, count: int) -> Ints:
    edges = np.cumsum(weights)
    return np.minimum(np.searchsorted(edges, rng.random(count) * edges[-1], side="right"), len(edges) - 1)


def _distinct_ads(rng: np.random.Generator, weights: Floats, display: Ints) -> Ints:
    """Draws an ad by popularity for each of R rows, so that the ads of a display are distinct.

    There must be at least MOST_ADS ads.
    """
    ad = _pick(rng, weights, len(display))
    while True:
        order = np.lexsort((ad, display))
        same = (np.diff(ad[order]) == 0) & (np.diff(display[order]) == 0)
        repeated = order[1:][same]
        if not len(repeated):
            return ad
        ad[repeated] = _pick(rng, weights, len(repeated))


def _appeal(world: World, user: Ints, document: Ints, ad: Ints) -> Floats:
    documents, promoted = world.documents, world.ads.document[ad]
    appeal = np.array(world.ads.quality[ad])
    for kind, strength in _LIKENESS.items():
        lists: Ints = getattr(documents, kind)
        appeal += strength * likeness(lists[document], lists[promoted])
    appeal += world.tastes["topic"][documents.topics[document, 0], documents.topics[promoted, 0]]
    appeal += world.tastes["platform"][world.users.platform[user], documents.categories[promoted, 0]]
    appeal += world.tastes["country"][world.users.country[user], documents.publisher[promoted]]
    return np.asarray(appeal + _FRESHNESS * np.log1p(documents.published[promoted] + world.age))


def likeness(left: Ints, right: Ints) -> Floats:
    """Returns the cosine similarity of two sets of ids in each row, shape (R,).

    It is |both| / √(|left| · |right|), where |both| is the number of ids that are in both sets. `left` and
    `right` have the shape (R, most). Rows with fewer than `most` ids are filled up with NONE.
    """
    both = ((left[:, :, None] == right[:, None, :]) & (left[:, :, None] != NONE)).sum(axis=(1, 2))
    return np.asarray(both / np.sqrt((left != NONE).sum(axis=1) * (right != NONE).sum(axis=1)))
