"""Generates a log like that of Kaggle's competition Outbrain Click Prediction.

Users click one ad of each display. A row is one ad of one display. A row already contains the columns of the
competition's other tables (events, promoted_content, documents_*). In the competition's data, these tables
must first be joined, as NVIDIA's Wide & Deep example does. The module first draws documents, ads, users, and
which user sees and clicks which ads. Then it converts displays to lines, and counts rows.

A display is shown on a document (a web page), and each ad promotes another document. A display has 2 to 12
ads. The user clicks exactly one of them, with a probability proportional to exp(appeal). So the
click is a draw from the softmax over the ads (Gumbel-max). An ad's appeal is a sum of effects of columns of
its row:

    similarity of the two documents' topics, and of their categories   cosine of the two sets
    topic of the document × topic of the promoted document             one effect per pair (a taste)
    platform × category of the promoted document                       one effect per pair (a taste)
    country × publisher of the promoted document                       one effect per pair (a taste)
    ad, advertiser                                                     one effect for each (a quality)
    days since the promoted document was published                     proportional to the logarithm

A ranking of each display's ads by appeal has the best possible MAP@12. The appeal depends only on the ad's
own row. A ranking of all rows by click probability has the best possible AUC. The click probability also
depends on the other ads of the display, so a model that scores each row alone does not quite reach this AUC.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from conf.types import Generate
from etl.synthetic.click_probability import GeneratedColumn, auc_of_counts, normals, uniforms
from etl.synthetic.impressions import seconds_of_day, window_of_day
from etl.synthetic.lines import (
    WHOLE,
    LogLayout,
    draw_damage,
    generators,
    lines,
    midnight,
    number_texts,
    part_of_file,
    reasons_of,
)

# The code below draws documents, the ads that promote documents, and users. The draws depend only on seed,
# sizes and day.
#
# Each day, a share `cold_share` of the ads and users is new, and the same number of old ads and users is
# removed. Documents stay the same.

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
NONE = -1  # pads a row after its last id
TOPICS, CATEGORIES, ENTITIES = 30, 12, 400
PLATFORMS = 3
FIRST_DAY = date(2026, 1, 1)  # `Documents.published` counts back from this day
COUNTRIES = ("US", "GB", "CA", "AU", "IN", "DE")
STATES, MARKETS = 8, 4  # number of states in a country, and of markets in a state
PUBLISHERS = 24
_SOURCES_A_PUBLISHER = 3
_MOST = {"topic": 3, "category": 2, "entity": 3}  # maximum number of ids of a document
_QUALITY = {"ad": 0.7, "advertiser": 0.4}
_POPULARITY_SPREAD = 1.0
_PUBLISHED_DAYS = 400  # age of the oldest document on 2026-01-01, in days
_SKEW = 1.5


@dataclass(frozen=True)
class Documents:
    """N documents, stored as columns. `most` is the maximum number of ids of one kind that a document has.

    Attributes:
        source: (N,) code of the document's source.
        publisher: (N,) code of the document's publisher.
        published: (N,) number of days from the publication to 2026-01-01, with fractions.
        topics: (N, most) distinct ids of the document's topics, padded with NONE.
        categories: (N, most) distinct ids of the document's categories, padded with NONE.
        entities: (N, most) distinct ids of the document's entities, padded with NONE.
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
    """Draws as many documents as a day has ads. The weight of a document is its popularity."""
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

    The rows of a display are consecutive, and displays are ordered by time.

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
    `left` and `right` have the shape (R, most). Rows with fewer than `most` ids are padded with NONE.
    """
    both = ((left[:, :, None] == right[:, None, :]) & (left[:, :, None] != NONE)).sum(axis=(1, 2))
    return np.asarray(both / np.sqrt((left != NONE).sum(axis=1) * (right != NONE).sum(axis=1)))


# The code below converts displays to lines of csv, one line per ad. The columns have the same names as in the
# competition's tables.

LABEL = "clicked"

# A list consists of ids separated by blanks; the first id has the highest confidence. Times are milliseconds
# since 1970 UTC.
COLUMNS = (
    GeneratedColumn("", "display_id", "context", "key"),
    GeneratedColumn("", "uuid", "user", "key"),
    GeneratedColumn("", "ad_id", "item", "key"),
    GeneratedColumn("", "timestamp", "context", "key"),
    GeneratedColumn("", "document_id", "context", "category"),
    GeneratedColumn("", "platform", "user", "category"),
    GeneratedColumn("", "geo_location", "user", "category"),
    GeneratedColumn("", "source_id", "context", "category"),
    GeneratedColumn("", "publisher_id", "context", "category"),
    GeneratedColumn("", "publish_time", "context", "integer"),
    GeneratedColumn("", "topic_id_list", "context", "category"),
    GeneratedColumn("", "entity_id_list", "context", "category"),
    GeneratedColumn("", "category_id_list", "context", "category"),
    GeneratedColumn("", "document_id_promo", "item", "category"),
    GeneratedColumn("", "campaign_id", "item", "category"),
    GeneratedColumn("", "advertiser_id", "item", "category"),
    GeneratedColumn("", "source_id_promo", "item", "category"),
    GeneratedColumn("", "publisher_id_promo", "item", "category"),
    GeneratedColumn("", "publish_time_promo", "item", "integer"),
    GeneratedColumn("", "topic_id_list_promo", "item", "category"),
    GeneratedColumn("", "entity_id_list_promo", "item", "category"),
    GeneratedColumn("", "category_id_list_promo", "item", "category"),
)
_NAMES = tuple(column.name for column in COLUMNS)
OUTBRAIN = LogLayout((LABEL, *_NAMES), ",", "csv", True, COLUMNS, _NAMES)
# Number of displays that are drawn at once, which limits the use of memory. A different number would give
# other displays.
_BLOCK_DISPLAYS = 8_192
_MILLISECONDS_A_DAY = 86_400_000


def display_blocks(config: Generate, day: date, file: int) -> Iterator[tuple[bytes, DisplayCounts]]:
    """Yields the lines and the summary of each block of a file. The first block begins with the header."""
    world = draw_world(config, day)
    displays = max(round(config.rows_per_day / MEAN_ADS), config.files_per_day)
    start, end = part_of_file(config, displays, file)
    for block, first in enumerate(range(start, end, _BLOCK_DISPLAYS)):
        last = min(first + _BLOCK_DISPLAYS, end)
        rows, breaks = generators(config, day, file, block)
        drawn = draw_displays(world, rows, last - first, (first / displays, last / displays))
        texts = column_texts(world, drawn, 1000 * midnight(day), first + displays * day.toordinal())
        texts = _lose(rows, texts, config.missing_share)
        damage = draw_damage(OUTBRAIN, breaks, len(drawn.clicked), config.malformed_share)
        head = OUTBRAIN.header if block == 0 else b""
        yield head + lines(OUTBRAIN, texts, damage), summarise(drawn, texts, damage)


def column_texts(
    world: DisplayWorld, drawn: Displays, start_ms: int, first_display: int
) -> list[pa.StringArray]:
    """Returns one array of texts per column: first the label, then the columns in the order of COLUMNS.

    Args:
        world: documents, ads, users and tastes of the day.
        drawn: the displays of a block.
        start_ms: the start of the day, in milliseconds since 1970 UTC.
        first_display: the display_id of the first display.
    """
    documents, ads, users = world.documents, world.ads, world.users
    promoted = ads.document[drawn.ad]
    of_day = seconds_of_day(drawn.quantile)
    columns = {
        LABEL: drawn.clicked,
        "display_id": first_display + drawn.display,
        "uuid": users.number[drawn.user],
        "ad_id": ads.number[drawn.ad],
        "timestamp": start_ms + 1000 * of_day,
        "document_id": drawn.document,
        "platform": 1 + users.platform[drawn.user],
        "document_id_promo": promoted,
        "campaign_id": ads.campaign[drawn.ad],
        "advertiser_id": ads.advertiser[drawn.ad],
    }
    texts = {name: number_texts(values) for name, values in columns.items()}
    texts["uuid"] = pc.binary_join_element_wise("u", texts["uuid"], "")
    texts["geo_location"] = _geo_locations(world).take(pa.array(drawn.user))
    for suffix, documents_of_rows in (("", drawn.document), ("_promo", promoted)):
        for name, by_document in _document_texts(documents).items():
            texts[f"{name}{suffix}"] = by_document.take(pa.array(documents_of_rows))
    return [texts[name] for name in OUTBRAIN.names]


def _document_texts(documents: Documents) -> dict[str, pa.StringArray]:
    """Returns a mapping from column names to arrays (documents,) with one text per document."""
    first_ms = 1000 * midnight(FIRST_DAY)
    published = first_ms - np.rint(documents.published * _MILLISECONDS_A_DAY).astype(np.int64)
    return {
        "source_id": number_texts(documents.source),
        "publisher_id": number_texts(documents.publisher),
        "publish_time": number_texts(published),
        "topic_id_list": _list_texts(documents.topics),
        "entity_id_list": _list_texts(documents.entities),
        "category_id_list": _list_texts(documents.categories),
    }


def _list_texts(ids: Ints) -> pa.StringArray:
    """Converts the ids of each row, shape (N, most), to one text with the ids separated by blanks."""
    return pa.array(
        [" ".join(str(number) for number in row if number != NONE) for row in ids.tolist()], pa.string()
    )


def _geo_locations(world: DisplayWorld) -> pa.StringArray:
    """Returns the location of each user, shape (users,), such as the text `US>3>12`.

    The three parts of a location are the country, the state, and the index of the market in the country.
    """
    users = world.users
    parts = zip(users.country.tolist(), users.state.tolist(), users.market.tolist(), strict=True)
    return pa.array(
        [f"{COUNTRIES[country]}>{state}>{10 * state + market}" for country, state, market in parts]
    )


def _lose(rng: np.random.Generator, texts: list[pa.StringArray], share: float) -> list[pa.StringArray]:
    """Empties random fields other than label and keys. The click was drawn before, from the complete row."""
    kept = texts[:1]
    for column, text in zip(COLUMNS, texts[1:], strict=True):
        if column.kind != "key":
            text = pc.if_else(pa.array(rng.random(len(text)) < share), pa.scalar(None, pa.string()), text)
        kept.append(text)
    return kept


# The code below counts generated displays.
#
# The worker that draws a block also counts the displays of this block. Then the counts of all blocks of a day
# are added.

K = 12  # Number of positions that MAP@12 measures, as in the competition.
STEPS = 4096  # Number of bins of the click probability, for the AUC.

# The reciprocal of each position up to 12 is a multiple of 1 / _UNITS, so that integer sums are exact.
_UNITS = 27_720


@dataclass(frozen=True)
class DisplayCounts:
    """Counts of a set of displays. The sum of two such objects has the counts of both sets.

    The generator makes some rows malformed on purpose (`draw_damage`); all other rows are valid. Except for
    `rows` and `malformed`, the counts include only valid rows.

    Attributes:
        rows: number of rows.
        malformed: number of malformed rows for each reason to quarantine a row, in the order of
            `layout.reasons_of`.
        missing: number of empty fields in each column.
        outcomes: (2, STEPS). outcomes[l, b] is the number of rows with the label l and a click probability in
            bin b.
        sizes: (MOST_ADS + 1,). sizes[n] is the number of displays that have n valid rows. Only displays whose
            clicked row is valid are included.
        best_units: sum of _UNITS / position over the displays whose clicked row is valid. Here position is
            the position of the clicked ad in a ranking of the display's ads by appeal. The appeal is the
            logit from which the click was drawn.
    """

    rows: int
    malformed: Ints
    missing: Ints
    outcomes: Ints
    sizes: Ints
    best_units: int

    def __add__(self, other: DisplayCounts) -> DisplayCounts:
        return DisplayCounts(
            self.rows + other.rows,
            self.malformed + other.malformed,
            self.missing + other.missing,
            self.outcomes + other.outcomes,
            self.sizes + other.sizes,
            self.best_units + other.best_units,
        )


def summarise(drawn: Displays, texts: list[pa.StringArray], damage: Ints) -> DisplayCounts:
    """Counts the rows, malformed rows, empty fields and clicks in one block of generated displays."""
    whole = damage == WHOLE
    steps = np.minimum((drawn.chance[whole] * STEPS).astype(np.int64), STEPS - 1)
    outcomes = np.bincount(drawn.clicked[whole] * STEPS + steps, minlength=2 * STEPS)
    empty = [np.count_nonzero(text.is_null().to_numpy(zero_copy_only=False)[whole]) for text in texts]
    size, position = _click_positions(drawn, whole)
    return DisplayCounts(
        len(damage),
        np.bincount(damage[~whole], minlength=len(reasons_of(OUTBRAIN))),
        np.array(empty[1:]),
        outcomes.reshape(2, STEPS),
        np.bincount(size, minlength=MOST_ADS + 1),
        int((_UNITS // position).sum()),
    )


def _click_positions(drawn: Displays, whole: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Returns, for each display, the number of its valid rows and the position of the clicked ad.

    The display's valid rows are ranked by descending appeal. Positions begin at 1. Displays whose clicked row
    is malformed are left out.

    Args:
        drawn: the displays of a block.
        whole: (R,) whether each row is valid.
    """
    displays = len(drawn.size)
    display, appeal = drawn.display[whole], drawn.appeal[whole]
    click = (drawn.clicked == 1) & whole
    of_click = np.full(displays, np.inf)
    of_click[drawn.display[click]] = drawn.appeal[click]
    size = np.bincount(display, minlength=displays)
    above = np.bincount(display[appeal > of_click[display]], minlength=displays)
    kept = np.isfinite(of_click)
    return size[kept], above[kept] + 1


def display_facts(config: Generate, day: date, summary: DisplayCounts) -> dict[str, Any]:
    """Returns the facts that a day's manifest contains about the generated displays.

    `best_map_at_12` is the MAP@12 of a ranking of each display's ads by appeal. Except by chance, no score
    has a higher MAP@12. `random_map_at_12` is the mean MAP@12 over random orders. In a display of n ads, the
    mean of 1 / position is H(n) / n, where H(n) is the n-th harmonic number. `best_auc` is the AUC of the
    click probabilities, which are rounded to bins of 1/4096. Only a score that is computed from all ads of a
    display can reach this AUC.
    """
    displays = int(summary.sizes.sum())
    sizes = np.arange(1, MOST_ADS + 1)
    random_map = np.cumsum(1 / sizes) / sizes  # (MOST_ADS,): the mean MAP of displays of 1, 2, … ads
    malformed = dict(zip(reasons_of(OUTBRAIN), summary.malformed.tolist(), strict=True))
    return {
        "rows": summary.rows,
        "malformed_rows": int(summary.malformed.sum()),
        "malformed": {reason: count for reason, count in malformed.items() if count},
        "missing": dict(zip(OUTBRAIN.feature_names, summary.missing.tolist(), strict=True)),
        "positives": int(summary.outcomes[1].sum()),
        "displays": displays,
        "best_auc": auc_of_counts(summary.outcomes),
        "best_map_at_12": summary.best_units / _UNITS / displays if displays else None,
        "random_map_at_12": float((summary.sizes[1:] * random_map).sum() / displays) if displays else None,
    }
