"""Draws displays. A display has a user, a document (a web page), several ads, and one clicked ad."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

import numpy as np
from numpy.typing import NDArray

from conf.types import Generate
from etl.synthetic.clicks.draws import normals, uniforms
from etl.synthetic.clicks.world import window_of_day

# Draws documents, the ads that promote documents, and users. They depend only on seed, sizes and day.
#
# Each day, a share `cold_share` of the ads and users is new, and the same number of old ads and users is
# removed. Documents stay the same.

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
NONE = -1  # fills a row up after its last id
TOPICS, CATEGORIES, ENTITIES = 30, 12, 400
PLATFORMS = 3
FIRST_DAY = date(2026, 1, 1)  # the age of documents is counted from this day
COUNTRIES = ("US", "GB", "CA", "AU", "IN", "DE")
STATES, MARKETS = 8, 4  # number of states in a country, and of markets in a state
PUBLISHERS = 24
_SOURCES_A_PUBLISHER = 3
_MOST = {"topic": 3, "category": 2, "entity": 3}  # maximum number of ids of a document
_QUALITY = {"ad": 0.7, "advertiser": 0.4}
_POPULARITY_SPREAD = 1.0
_PUBLISHED_DAYS = 400  # age of the oldest document in days before 2026
_SKEW = 1.5


@dataclass(frozen=True)
class Documents:
    """N documents, stored as columns.

    Attributes:
        source: (N,) code of the document's source.
        publisher: (N,) code of the document's publisher.
        published: (N,) number of days from the publication to 2026-01-01, with fractions.
        topics: (N, most) distinct ids of the document's topics, filled up with NONE.
        categories: (N, most) distinct ids of the document's categories, filled up with NONE.
        entities: (N, most) distinct ids of the document's entities, filled up with NONE.
        weights: (N,) relative frequency with which the document is read.
    """

    source: Ints
    publisher: Ints
    published: Floats
    topics: Ints
    categories: Ints
    entities: Ints
    weights: Floats


@dataclass(frozen=True)
class Ads:
    """The ads of a day, stored as columns of shape (N,).

    `document` is the index of the promoted document. `quality` is the constant term of the ad's appeal.
    Appeal is the logit from which clicks are drawn.
    """

    number: Ints
    document: Ints
    campaign: Ints
    advertiser: Ints
    quality: Floats
    weights: Floats


@dataclass(frozen=True)
class UserColumns:
    """The users of a day, stored as columns of shape (N,)."""

    number: Ints
    platform: Ints
    country: Ints
    state: Ints
    market: Ints
    weights: Floats


def draw_documents(config: Generate) -> Documents:
    """Draws as many documents as a day has ads. A popular document is read more often than others."""
    number = np.arange(config.items)
    publisher = _codes(config.seed, "document/publisher", number, PUBLISHERS)
    part = _codes(config.seed, "document/source", number, _SOURCES_A_PUBLISHER)
    category = _codes(config.seed, "document/category", number, CATEGORIES)
    return Documents(
        source=publisher * _SOURCES_A_PUBLISHER + part,
        publisher=publisher,
        published=_PUBLISHED_DAYS * uniforms(config.seed, "document/published", number) ** 2,
        topics=_lists(config.seed, "topic", number, TOPICS),
        categories=_lists(config.seed, "category", number, CATEGORIES, category),
        entities=_lists(config.seed, "entity", number, ENTITIES),
        weights=np.exp(_POPULARITY_SPREAD * normals(config.seed, "document/popularity", number)),
    )


def draw_ads(config: Generate, day: int) -> Ads:
    """Draws the ads of a day. An advertiser has several campaigns, and a campaign has several ads."""
    number, _ = window_of_day(config.items, config.cold_share, day)
    campaign = _codes(config.seed, "ad/campaign", number, max(config.items // 4, 1))
    advertiser = _codes(config.seed, "campaign/advertiser", campaign, max(config.items // 16, 1))
    quality = _QUALITY["ad"] * normals(config.seed, "ad/quality", number)
    quality += _QUALITY["advertiser"] * normals(config.seed, "advertiser/quality", advertiser)
    return Ads(
        number=number,
        document=(uniforms(config.seed, "ad/document", number) * config.items).astype(np.int64),
        campaign=campaign,
        advertiser=advertiser,
        quality=quality,
        weights=np.exp(_POPULARITY_SPREAD * normals(config.seed, "ad/popularity", number)),
    )


def draw_users(config: Generate, day: int) -> UserColumns:
    """Draws the users of a day."""
    number, _ = window_of_day(config.users, config.cold_share, day)
    return UserColumns(
        number=number,
        platform=_codes(config.seed, "user/platform", number, PLATFORMS),
        country=_codes(config.seed, "user/country", number, len(COUNTRIES)),
        state=_codes(config.seed, "user/state", number, STATES),
        market=_codes(config.seed, "user/market", number, MARKETS),
        weights=np.exp(0.6 * normals(config.seed, "user/activity", number)),
    )


def _codes(seed: int, stream: str, index: Ints, levels: int) -> Ints:
    """Returns one code in [0, levels) per index, shape (n,). Lower codes are more frequent."""
    return (uniforms(seed, stream, index) ** _SKEW * levels).astype(np.int64)


def _lists(seed: int, kind: str, number: Ints, levels: int, first: Ints | None = None) -> Ints:
    """Returns the ids of each document, shape (N, most): one to `most` distinct ids, then NONE.

    The first id of a document is the one with the highest confidence. `first` contains the first id of each
    document; if it is None, the first ids are drawn too.
    """
    most = _MOST[kind]
    drawn = np.stack(
        [_codes(seed, f"document/{kind}/{index}", number, levels) for index in range(most)], axis=1
    )
    if first is not None:
        drawn[:, 0] = first
    length = 1 + (uniforms(seed, f"document/{kind}/length", number) * most).astype(np.int64)
    kept = np.arange(most) < length[:, None]
    for index in range(1, most):
        kept[:, index] &= (drawn[:, :index] != drawn[:, index : index + 1]).all(axis=1)
    order = np.argsort(~kept, axis=1, kind="stable")  # the ids that are kept come first, in their order
    return np.take_along_axis(np.where(kept, drawn, NONE), order, axis=1)


LEAST_ADS, MOST_ADS = 2, 12

# The probabilities that a display has 2, 3, … 12 ads. The mean is five, so rows_per_day / 5 displays have
# about rows_per_day rows.
_SIZE_CHANCES = np.array([14, 16, 19, 16, 12, 8, 5, 4, 3, 2, 1]) / 100
MEAN_ADS = float((_SIZE_CHANCES * np.arange(LEAST_ADS, MOST_ADS + 1)).sum())
_LIKENESS = {"topics": 2.0, "categories": 1.0}
_TASTES = {"topic": 0.7, "platform": 0.5, "country": 0.4}
_FRESHNESS = -0.25


@dataclass(frozen=True)
class DisplayWorld:
    """The documents, ads, users and tastes of one day.

    Attributes:
        tastes: maps a name to a table with the number that each pair of categories adds to the appeal of an
            ad.
        age: number of days from 2026-01-01 to this day, at least 0.
    """

    documents: Documents
    ads: Ads
    users: UserColumns
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


def draw_world(config: Generate, on: date) -> DisplayWorld:
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
    return DisplayWorld(draw_documents(config), draw_ads(config, day), draw_users(config, day), tastes, age)


def draw_displays(
    world: DisplayWorld, rng: np.random.Generator, displays: int, window: tuple[float, float]
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


def _appeal(world: DisplayWorld, user: Ints, document: Ints, ad: Ints) -> Floats:
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

    The similarity is |both| / √(|left| · |right|), where |both| is the number of ids that are in both sets.
    `left` and `right` have the shape (R, most). Rows with fewer than `most` ids are filled up with NONE.
    """
    both = ((left[:, :, None] == right[:, None, :]) & (left[:, :, None] != NONE)).sum(axis=(1, 2))
    return np.asarray(both / np.sqrt((left != NONE).sum(axis=1) * (right != NONE).sum(axis=1)))
