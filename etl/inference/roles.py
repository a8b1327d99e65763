"""Infers what the columns of a log mean: user, item, time, and the label of a click.

The names of columns are compared first. If the files have no names, the order of the columns and their values
are used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow.compute as pc

from etl.inference.column_types import SampledColumn, numbers_of

# Words in the names of columns, with the points of a column whose name contains the word.
_USER_WORDS: Mapping[str, int] = {
    **dict.fromkeys(("user", "visitor", "customer"), 10),
    **dict.fromkeys(("client", "member", "reader", "shopper", "subscriber", "reviewer"), 9),
    **dict.fromkeys(("listener", "buyer", "uid"), 9),
    **dict.fromkeys(("person", "account", "household", "viewer", "player", "student"), 8),
    "anonymous": 7,
    "cookie": 6,
    "device_id": 5,
    "session": 4,
    "order_id": 2,
    "basket": 2,
}
_ITEM_WORDS: Mapping[str, int] = {
    **dict.fromkeys(("item", "product", "article", "movie", "film", "video", "book", "song", "asin"), 10),
    **dict.fromkeys(("track", "sku", "listing", "business", "game", "recipe", "anime"), 9),
    **dict.fromkeys(("news", "photo", "course", "show_id", "poi", "venue", "hotel", "restaurant"), 8),
    **dict.fromkeys(("content", "post", "app_id", "artist", "offer", "ad_id", "place"), 7),
    "creative": 6,
    "url": 2,
    "page": 2,
    "category": 1,
}
_ID_WORD = re.compile(r"(^|_)(id|key|code|no|nr|number|idx|index)s?($|_)|id$|idx$", re.IGNORECASE)
_NOT_EVENT_TIME = re.compile(
    r"birth|signup|sign_up|regist|release|publish|expir|update|deliver|since|prior|dow|duration|length|week",
    re.IGNORECASE,
)
_TIME_WORDS = re.compile(r"time|date|day|hour|(^|_)(ts|at|dt|dat)($|_)|when|created", re.IGNORECASE)
# Names of events, with the weights of their rows. An event such as a purchase shows more interest than a
# view.
_VIEWS = (
    *("view", "pv", "click", "clk", "detail", "pageview", "page_view", "read", "open", "visit", "play"),
    *("viewed", "clicked", "watch", "listen", "view_item"),
)
_EVENT_WEIGHTS: Mapping[str, float] = {
    **dict.fromkeys(_VIEWS, 0.1),
    **dict.fromkeys(("fav", "favorite", "favourite", "like", "save", "wishlist", "follow", "bookmark"), 0.4),
    **dict.fromkeys(("cart", "addtocart", "add_to_cart", "add", "basket", "share", "comment"), 0.5),
    **dict.fromkeys(("collect", "download"), 0.5),
    **dict.fromkeys(("purchase", "buy", "transaction", "order", "bought", "conversion"), 1.0),
    **dict.fromkeys(("checkout", "sale", "rent"), 1.0),
}
_SHOWN = ("impression", "show", "shown", "display", "exposure", "imp", "impress")
_EVENT_NAME = re.compile(r"event|action|behavi|interaction|activity|(^|_)type($|_)", re.IGNORECASE)
_LABEL_NAME = re.compile(
    r"click|label|target|conver|purchas|bought|engag|(^|_)(y|ctr|response|outcome)($|_)", re.IGNORECASE
)
_WEAK_LABEL_NAME = re.compile(r"like|favou?rite|is_read|(^|_)read($|_)|watched|finish", re.IGNORECASE)
_RATING_NAME = re.compile(r"rating|(^|_)(score|stars?|grade|rate)($|_)|overall", re.IGNORECASE)
_SHARE_NAME = re.compile(r"(^|_)ratio|completion|progress|percent", re.IGNORECASE)
_GROUP_NAME = re.compile(r"session|impression|display|request|query|search_id|visit|page_view", re.IGNORECASE)
# Names of the columns with the title and the picture of an item. Earlier names are preferred.
_TITLE_NAMES = (
    *("title", "product_title", "item_title", "product_name", "item_name", "prod_name", "article_name"),
    *("movie_title", "film_title", "video_title", "book_title", "track_name", "song_title", "name"),
)
_IMAGE_NAMES = (
    *("image", "image_url", "picture", "picture_url", "image_link", "img", "img_url", "photo"),
    *("photo_url", "thumbnail", "thumbnail_url", "cover", "cover_url", "poster", "poster_url"),
)
_MOST_EVENTS = 30
# A column may contain unknown events if it has between 2 and 12 distinct texts, and 5 or more rows per text.
_FEWEST_EVENTS, _MOST_UNKNOWN_EVENTS, _ROWS_OF_AN_EVENT = 2, 12, 5
# If the points of two columns differ by at most this number, both columns are candidates for the role.
_DOUBT = 3
# Maximum share of nulls in the column of a key. Rows without a key are quarantined.
_MOST_NULL_KEYS = 0.04


@dataclass(frozen=True)
class LabelGuess:
    """Which rows are clicks.

    Attributes:
        column: the column that shows which rows are clicks; None if every row is a click.
        positive_at_least: smallest number that is a click; None for other labels.
        weights: maps events that are clicks to the weights of their rows; empty for other labels.
        left_out: events that are not clicks.
        has_shown: whether the log also has rows of items that were shown but not clicked.
        why: the reason for this choice, as a clause for messages.
    """

    column: SampledColumn | None
    positive_at_least: float | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    has_shown: bool = False
    why: str = "no column shows which rows are clicks, so every row counts as a click"


@dataclass(frozen=True)
class Roles:
    """What the columns of a log mean.

    Attributes:
        user, item: the columns with the keys, the most likely one first. Empty if no column can be a key.
        time: the columns with times of rows, the most likely one first.
        group: the column whose values group rows that competed for one click; None without such a column.
        label: which rows are clicks.
    """

    user: tuple[SampledColumn, ...]
    item: tuple[SampledColumn, ...]
    time: tuple[SampledColumn, ...]
    group: SampledColumn | None
    label: LabelGuess


def roles_of(columns: Sequence[SampledColumn], rows: int, *, has_names: bool) -> Roles:
    """Returns the roles of the columns of a log.

    Args:
        columns: the columns of a sample of the log.
        rows: number of rows of the sample.
        has_names: whether the files name their columns.
    """
    label = label_of(columns, has_names=has_names)
    times = _times(columns)
    taken = {column.source for column in (*times[:1], *([label.column] if label.column else []))}
    ids = [
        column
        for column in columns
        if column.source not in taken
        and column.type in ("int", "string")
        and not column.is_time
        and column.distinct > 1
    ]
    filled = [column for column in ids if column.nulls <= _MOST_NULL_KEYS * max(rows, 1)]
    users, items = _keys_by_name(filled or ids) if has_names else _keys_by_order(filled or ids, rows)
    group = None
    if label.has_shown:
        keys = {column.source for column in (*users[:1], *items[:1])}
        named = [column for column in ids if _GROUP_NAME.search(column.source) and column.source not in keys]
        group = named[0] if named else None
    return Roles(tuple(users), tuple(items), tuple(times), group, label)


def label_of(columns: Sequence[SampledColumn], *, has_names: bool) -> LabelGuess:
    """Returns which rows of a log are clicks.

    A column of events is used if there is one. Otherwise a column of 0 and 1 is used, and otherwise a rating.
    """
    for column in columns:
        guess = _events_in(column, has_names=has_names)
        if guess is not None:
            return guess
    for pattern in (_LABEL_NAME, _RATING_NAME, _WEAK_LABEL_NAME, _SHARE_NAME) if has_names else ():
        for column in columns:
            if (
                pattern.search(column.source)
                and column.type in ("int", "float", "bool")
                and not column.is_time
            ):
                guess = _numbers_in(column, is_rating=pattern in (_RATING_NAME, _SHARE_NAME))
                if guess is not None:
                    return guess
    if not has_names and columns and _is_binary(columns[0]):
        return LabelGuess(columns[0], has_shown=True, why="the first column has only 0 and 1")
    return LabelGuess(None)


def events_of(column: SampledColumn) -> LabelGuess | None:
    """Returns the label of the column that the user named as the column of events.

    Returns None if the column cannot contain events. If no event is in _EVENT_WEIGHTS, all events are clicks
    with the weight 1.
    """
    known = _events_in(column, has_names=True)
    if known is not None or column.type != "string" or not 1 <= column.distinct <= _MOST_EVENTS:
        return known
    events = sorted(pc.unique(column.values.drop_null().combine_chunks()).to_pylist())
    return LabelGuess(
        column, None, dict.fromkeys(events, 1.0), why=f"{column.source} has the events {events}"
    )


def possible_events(
    columns: Sequence[SampledColumn], others: Sequence[SampledColumn | None]
) -> list[SampledColumn]:
    """Returns the columns that may contain the event of each row. They have few distinct texts and no nulls.

    Args:
        columns: the columns of the log.
        others: columns that have another role.
    """
    taken = {column.source for column in others if column is not None}
    return [
        column
        for column in columns
        if column.source not in taken
        and column.type == "string"
        and not column.nulls
        and _FEWEST_EVENTS <= column.distinct <= _MOST_UNKNOWN_EVENTS
        and len(column.values) >= _ROWS_OF_AN_EVENT * column.distinct
    ]


def _events_in(column: SampledColumn, *, has_names: bool) -> LabelGuess | None:
    if column.type != "string" or not 1 <= column.distinct <= _MOST_EVENTS:
        return None
    events = pc.unique(column.values.drop_null().combine_chunks()).to_pylist()
    known = {event: _EVENT_WEIGHTS[event.lower()] for event in events if event.lower() in _EVENT_WEIGHTS}
    shown = [event for event in events if event.lower() in _SHOWN]
    is_named = has_names and bool(_EVENT_NAME.search(column.source))
    if (
        not known
        or (len(known) + len(shown) < len(events) / 2 and not is_named)
        or (len(events) == 1 and not is_named)
    ):
        return None
    others = tuple(sorted(event for event in events if event not in known and event not in shown))
    if shown:
        return LabelGuess(
            column,
            None,
            dict.fromkeys(known, 1.0),
            (*others,),
            True,
            f"{column.source} has the events {sorted(events)}",
        )
    return LabelGuess(column, None, known, others, False, f"{column.source} has the events {sorted(events)}")


def _numbers_in(column: SampledColumn, *, is_rating: bool) -> LabelGuess | None:
    if _is_binary(column):
        return LabelGuess(column, has_shown=True, why=f"{column.source} has only 0 and 1")
    if column.type == "bool":
        return LabelGuess(column, has_shown=True, why=f"{column.source} is true or false")
    if not is_rating:
        return None
    numbers = numbers_of(column.values)
    if not len(numbers):
        return None
    if _SHARE_NAME.search(column.source):
        return LabelGuess(
            column, positive_at_least=0.8, why=f"{column.source} says how much of an item was used"
        )
    largest = float(numbers.max())
    scale = next((top for top in (1, 5, 10, 100) if largest <= top), None)
    if scale is None or scale == 1:
        return None
    return LabelGuess(
        column, positive_at_least=scale * 0.8, why=f"{column.source} is a rating up to {largest:g}"
    )


def _is_binary(column: SampledColumn) -> bool:
    if column.type not in ("int", "float") or column.distinct != 2:
        return False
    return set(numbers_of(column.values).tolist()) == {0.0, 1.0}


def _times(columns: Sequence[SampledColumn]) -> list[SampledColumn]:
    """Returns the columns with times of rows: timestamps, then integers, then dates, each in their order."""
    fitting = [
        (number, column)
        for number, column in enumerate(columns)
        if column.is_time and not _NOT_EVENT_TIME.search(column.source) and column.distinct > 1
    ]
    order = {"timestamp": 0, "int": 1, "date": 2}
    fitting.sort(key=lambda one: (order[one[1].type], not _TIME_WORDS.search(one[1].source), one[0]))
    return [column for _, column in fitting]


def title_of(columns: Sequence[SampledColumn]) -> SampledColumn | None:
    """Returns the column with the titles in a table of items, by its name; None without such a column."""
    return _text_named(_TITLE_NAMES, columns)


def image_of(columns: Sequence[SampledColumn]) -> SampledColumn | None:
    """Returns the column with the addresses of pictures in a table of items; None without such a column."""
    return _text_named(_IMAGE_NAMES, columns)


def _text_named(names: Sequence[str], columns: Sequence[SampledColumn]) -> SampledColumn | None:
    """Returns the column of texts whose name is earliest in `names`; None without such a column.

    Titles may be divided by blanks or commas, so a column of titles may have the type list<string>.
    """
    by_name = {
        re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column.source).lower()): column
        for column in columns
        if column.type in ("string", "list<string>") and column.nulls < len(column.values)
    }
    return next((by_name[name] for name in names if name in by_name), None)


def _keys_by_name(ids: Sequence[SampledColumn]) -> tuple[list[SampledColumn], list[SampledColumn]]:
    users = _by_words(ids, _USER_WORDS)
    items = [column for column in _by_words(ids, _ITEM_WORDS) if column not in users[:1]]
    users = [column for column in users if column not in items[:1]]
    return users, items


def _by_words(ids: Sequence[SampledColumn], words: Mapping[str, int]) -> list[SampledColumn]:
    """Returns the columns whose names contain one of the words, the best column first.

    An id such as `product_id` is preferred to `product_name`.
    """

    def points(column: SampledColumn) -> float:
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column.source).lower()
        weight = max((weight for word, weight in words.items() if word in name), default=0)
        if not weight:
            return 0.0
        is_id = bool(_ID_WORD.search(name)) or name in words
        return weight + (5 if is_id else 0)

    scored = sorted(((points(column), -number) for number, column in enumerate(ids)), reverse=True)
    best = scored[0][0] if scored else 0.0
    return [ids[-place] for value, place in scored if value > 0 and value >= best - _DOUBT]


def _keys_by_order(
    ids: Sequence[SampledColumn], rows: int
) -> tuple[list[SampledColumn], list[SampledColumn]]:
    """Returns the columns of users and items in a log without names. The first key is the user."""
    keys = [column for column in ids if 20 <= column.distinct <= 0.9 * max(rows, 1)]
    return keys[:1], keys[1:]
