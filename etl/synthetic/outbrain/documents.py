"""Draws documents, the ads that promote documents, and users. They depend only on seed, sizes and day.

Each day, a share `cold_share` of the ads and users is new, and the same number of old ads and users is
removed. Documents stay the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

import numpy as np
from numpy.typing import NDArray

from conf.types import Generate
from etl.synthetic.clicks.draws import normals, uniforms
from etl.synthetic.clicks.world import window_of_day

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NONE = -1  # fills a row of ids after the last id
TOPICS, CATEGORIES, ENTITIES = 30, 12, 400
PLATFORMS = 3
FIRST_DAY = date(2026, 1, 1)  # the age of documents counts from this day
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

    `document` is the index of the promoted document. `quality` is the constant term of the ad's appeal, the
    logit from which clicks are drawn.
    """

    number: Ints
    document: Ints
    campaign: Ints
    advertiser: Ints
    quality: Floats
    weights: Floats


@dataclass(frozen=True)
class Users:
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


def draw_users(config: Generate, day: int) -> Users:
    """Draws the users of a day."""
    number, _ = window_of_day(config.users, config.cold_share, day)
    return Users(
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
    order = np.argsort(~kept, axis=1, kind="stable")  # kept ids first, in their order
    return np.take_along_axis(np.where(kept, drawn, NONE), order, axis=1)
