"""Infers what the columns of a log mean: user, item, time, and the label of a click.

The names of columns are compared first. If the files have no names, the order of the columns and their values
are used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from etl.inference.column_types import (
    SampledColumn,
    depends_on,
    has_midnights,
    is_grouped,
    numbers_of,
    plain_name,
)

# For each role, maps words to points. A column gets the points of a word if its name contains the word.
_USER_WORDS: Mapping[str, int] = {
    **dict.fromkeys(("user", "visitor", "customer"), 10),
    **dict.fromkeys(("client", "member", "reader", "shopper", "subscriber", "reviewer"), 9),
    **dict.fromkeys(("listener", "buyer", "uid"), 9),
    **dict.fromkeys(("person", "account", "household", "viewer", "player", "student"), 8),
    "anonymous": 7,
    **dict.fromkeys(("loyalty", "card_no", "card_number", "card_id", "cardno", "cardid"), 7),
    "cookie": 6,
    "device_id": 5,
    "session": 4,
    "order_id": 2,
    "basket": 2,
    **dict.fromkeys(("kunde", "kund_", "nutzer", "mitglied", "utilisateur", "usuario", "utente"), 9),
    **dict.fromkeys(("klant", "klient", "gebruiker", "bruger", "uzytkownik", "пользовател", "клиент"), 9),
    **dict.fromkeys(
        ("покупател", "用户", "用戶", "会员", "會員", "顾客", "顧客", "ユーザ", "会員", "고객", "사용자"), 9
    ),
}
_ITEM_WORDS: Mapping[str, int] = {
    **dict.fromkeys(("item", "product", "article", "movie", "film", "video", "book", "song"), 10),
    **dict.fromkeys(("asin", "isbn"), 10),
    **dict.fromkeys(("track", "sku", "listing", "business", "game", "recipe", "anime"), 9),
    **dict.fromkeys(("news", "photo", "course", "show_id", "poi", "venue", "hotel", "restaurant"), 8),
    **dict.fromkeys(("content", "post", "app_id", "artist", "offer", "ad_id", "place"), 7),
    "creative": 6,
    "site": 4,
    "url": 2,
    "page": 2,
    "category": 1,
    **dict.fromkeys(("episode", "podcast", "clip", "document", "lesson", "property"), 8),
    **dict.fromkeys(("artikel", "produkt", "produit", "producto", "prodotto", "articulo", "articolo"), 10),
    **dict.fromkeys(("товар", "артикул", "продукт", "商品", "物品", "アイテム", "상품"), 10),
}
# If all words in a column's name have fewer points, it is doubtful whether the column is a key. If the column
# also has few values, it is not a key.
_SURE = 5
# A column of e-mail addresses, or of their hashes, gets these points for the role of the user.
_ADDRESS_POINTS = 10
_ADDRESS_NAME = re.compile(r"(^|_)e?_?mail(_(hash|hashed|sha_?256|md5))?$|^hashed_e?_?mail$")
# Words with which the names of key columns end.
_KEY_END = re.compile(r"(^|_)(id|key|code|no|nr|number|nummer)$")
_ID_WORD = re.compile(
    r"(^|_)(id|key|code|no|nr|number|idx|index|nummer)s?($|_)|id$|idx$|nr$|nummer$", re.IGNORECASE
)
_NOT_EVENT_TIME = re.compile(
    r"birth|signup|sign_up|regist|release|publish|expir|update|deliver|since|prior|dow|duration|length|week",
    re.IGNORECASE,
)
_TIME_WORDS = re.compile(
    r"time|date|day|hour|(^|_)(ts|at|dt|dat)($|_)|when|created|datum|zeit|fecha|heure", re.IGNORECASE
)
# Names of events, and the weight of a row with this event. A purchase shows more interest than a view, so its
# weight is larger.
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
    **dict.fromkeys(("played", "stream", "streamed", "watched", "start", "started"), 0.1),
    **dict.fromkeys(("complete", "completed", "finish", "finished"), 0.5),
}
# Words in the names of events that are not clicks: they undo another event, or report that it failed.
_NO_EVENT = {
    *("remove", "removed", "delete", "deleted", "cancel", "cancelled", "canceled", "refund", "refunded"),
    *("return", "returned", "dislike", "disliked", "unlike", "skip", "skipped", "error", "fail", "failed"),
    *("not", "abandon"),
}
_SHOWN = ("impression", "show", "shown", "display", "exposure", "imp", "impress")
_EVENT_WORDS = {*_EVENT_WEIGHTS, *_NO_EVENT, *_SHOWN}
_EVENT_NAME = re.compile(r"event|action|behavi|interaction|activity|(^|_)type($|_)", re.IGNORECASE)
# The first pattern matches names that only columns of events have, in several languages. The second pattern
# matches names of columns with attributes.
CERTAIN_EVENT_NAME = re.compile(
    r"event|action|behavi|interaction|activity|ereignis|aktion|evento|accion|azione|evenement|gebeurtenis|"
    r"событие|действие|行为|事件|行動|イベント|이벤트",
    re.IGNORECASE,
)
_ATTRIBUTE_NAME = re.compile(
    r"branch|store|shop|outlet|market|location|region|country|city|state($|_)|province|postal|postcode|(^|_)zip|"
    r"filiale|standort|(^|_)ort($|_)|(^|_)land($|_)|(^|_)stadt|pays|ville|tienda|sucursal|pais|ciudad|negozio|"
    r"device|platform|browser|(^|_)os($|_)|(^|_)app($|_)|channel|kanal|gender|(^|_)sex($|_)|geschlecht|age($|_)|"
    r"language|(^|_)lang($|_)|sprache|currency|payment|category|kategorie|department|brand|marke|genre|topic|"
    r"colou?r|farbe|size|plan($|_)|tier|member|segment|weekday|season",
    re.IGNORECASE,
)
# The name of an event has at most three words, without digits.
_ACTION = re.compile(r"[^\W\d_]{2,}([ _.:-][^\W\d_]+){0,2}")
LABEL_NAME = re.compile(
    r"click|label|target|conver|purchas|bought|engag|(^|_)(y|ctr|response|outcome)($|_)", re.IGNORECASE
)
# Names of columns that say whether a purchase was verified, not whether the row is a purchase.
NO_LABEL_NAME = re.compile(r"verified", re.IGNORECASE)
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
# `possible_events` also finds events whose names are not in _EVENT_WEIGHTS. It considers only columns with 2
# to 12 distinct strings, and with at least 5 rows per string on average.
_FEWEST_EVENTS, _MOST_UNKNOWN_EVENTS, _ROWS_OF_AN_EVENT = 2, 12, 5
# If the points of two columns differ by at most this number, both columns are candidates for a role.
_DOUBT = 3
# Maximum shares of nulls in a key column and in the user column. Rows without a key are quarantined. Rows
# of anonymous visitors are only left out, so the user column may have more nulls.
MOST_NULL_KEYS, _MOST_ANONYMOUS = 0.04, 0.6
# A key column has at least _FEWEST_KEYS distinct values, and at most _MOST_KEYS distinct values per row.
_FEWEST_KEYS, _MOST_KEYS = 20, 0.9
# Names, in other languages, of columns with the titles of items. Accents are removed before names are
# compared.
_FOREIGN_TITLES = (
    *("titel", "bezeichnung", "artikelbezeichnung", "artikelname", "produktname", "produktbezeichnung"),
    *("titre", "nom", "nom_produit", "libelle", "designation", "intitule"),
    *("titulo", "nombre", "nombre_producto", "denominacion", "nome", "nome_prodotto", "titolo"),
    *("naam", "productnaam", "navn", "produktnavn", "namn", "nimi"),
    *("nazwa", "tytul", "nazev", "nazov", "naziv", "nume", "denumire", "ad", "urun_adi", "baslik"),
    *("название", "наименование", "назва", "заголовок", "имя", "τιτλος", "ονομα"),
    *("商品名", "商品名称", "商品名稱", "名称", "名稱", "标题", "標題", "品名", "商品标题"),
    *("タイトル", "名前", "商品タイトル", "상품명", "제목", "이름"),
)
# Limits for recognizing a column of titles by its values: minimum share of distinct strings, maximum mean
# length, and minimum share of strings with several words or letters beyond ASCII.
_TITLE_DISTINCT, _LONGEST_TITLE, _TITLE_WORDS = 0.3, 120, 0.4
# In point-of-sale data, the column with a product's name is often called description. If its strings have
# more than _SHORT_TITLE characters on average, they are not titles.
_DESCRIPTION_NAME, _SHORT_TITLE = re.compile(r"desc|beschreib", re.IGNORECASE), 30
_NO_TITLE_NAME = re.compile(
    r"desc|abstract|summary|body|comment|review|address|url|link|path|image|img|author|tags?($|_)",
    re.IGNORECASE,
)
# A column contains lists of items if at least the share _KNOWN_ITEMS of its words are items of the sample,
# and at least the share _SEVERAL_ITEMS of its strings have several words. The first share is small, because
# lists may contain many items that are not in the sample.
_KNOWN_ITEMS, _SEVERAL_ITEMS = 0.05, 0.3
# A column contains e-mail addresses if at least this share of its first strings are e-mail addresses.
_ADDRESSES, _MOST_ADDRESSES = 0.9, 10_000
# Names of columns that say whether an item is in stock, and names of columns that say whether it is out of
# stock.
_STOCK_NAME = re.compile(
    r"stock|availab|inventory|(^|_)(qty|quantity|lager|bestand|lagerbestand|vorrat|vorratig|verfugbar|"
    r"verfuegbar|lieferbar|disponible|disponibilite|disponibilita|disponibilidad|existencias|giacenza|"
    r"estoque|voorraad|skladem|dostepny|наличие|остаток|库存|庫存|在庫|재고)($|_)",
    re.IGNORECASE,
)
_SOLD_OUT_NAME = re.compile(
    r"out_of_stock|outofstock|sold_?out|unavailable|discontinued|delisted|ausverkauft|ausgelistet|agotado|"
    r"descatalogado|epuise|esaurito",
    re.IGNORECASE,
)
_NO_STOCK_NAME = re.compile(
    r"date|time|since|until|_at$|warehouse|location|price|value|min_|max_", re.IGNORECASE
)
# Strings that mean that a row is not a click.
NO_TEXTS = ("n", "no", "nein", "f", "false", "falsch", "non", "nee", "nej", "nie", "não", "нет", "0")
_TRUE = ("true", "t", "yes", "y", "1", "ja", "j", "wahr", "oui", "si", "sí", "sim")
# Values that mean that an item is out of stock.
_SOLD_OUT = re.compile(
    r"\s*(out[ _-]?of[ _-]?stock|outofstock|sold[ _-]?out|not[ _-]?available|unavailable|discontinued|"
    r"ausverkauft|nicht[ _-]lieferbar|nicht[ _-]verf(ü|ue)gbar|agotado|sin[ _-]stock|[eé]puis[eé]|rupture.*|"
    r"esaurito|non[ _-]disponibile|esgotado|uitverkocht|缺货|无货|売り切れ|在庫切れ|품절)\s*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class LabelGuess:
    """A guess about which rows of a log are clicks.

    Attributes:
        column: the column that shows which rows are clicks; None if every row is a click.
        positive_at_least: smallest number that means a click; None if the label is not a column of numbers.
        weights: maps events that are clicks to the weights of their rows; empty if the label is not a column
            of events.
        left_out: events that are not clicks.
        shown: the events of items that were shown, whether or not they were clicked.
        has_shown: whether the log also has rows of items that were shown but not clicked.
        has_empty: whether rows without a value in `column` are rows of shown items without a click.
        why: the reason for this choice, as a clause for messages.
        is_certain: whether the name and the values of the column leave no doubt.
    """

    column: SampledColumn | None
    positive_at_least: float | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    has_shown: bool = False
    has_empty: bool = False
    why: str = "no column shows which rows are clicks, so every row counts as a click"
    is_certain: bool = True


@dataclass(frozen=True)
class Roles:
    """What the columns of a log mean.

    Attributes:
        user, item: the columns that may have the ids of users and of items, the most likely one first. Empty
            if there is no such column.
        time: the columns with times of rows, the most likely one first.
        time_of_day: the column with the time of day, if the first column of `time` has only dates; otherwise
            None.
        group: the column whose values group the rows of items that were shown together; None without such a
            column.
        label: which rows are clicks.
    """

    user: tuple[SampledColumn, ...]
    item: tuple[SampledColumn, ...]
    time: tuple[SampledColumn, ...]
    time_of_day: SampledColumn | None
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
    if has_names:
        known = [column for column in ids if column.nulls <= _MOST_ANONYMOUS * max(rows, 1)]
        users, items = _keys_by_name(known or ids, ids)
    else:
        users, items = _keys_by_order([one for one in ids if is_filled(one)] or ids, rows)
    group = None
    if label.has_shown:
        keys = {column.source for column in (*users[:1], *items[:1])}
        named = [column for column in ids if _GROUP_NAME.search(column.source) and column.source not in keys]
        group = named[0] if named else None
    return Roles(tuple(users), tuple(items), tuple(times), time_of_day_of(times, columns), group, label)


def roles_of_displays(columns: Sequence[SampledColumn]) -> Roles:
    """Returns the roles of the columns of a log of displays, whose last columns are the item and the click.

    A display is a set of items that were shown together. All rows of a display are adjacent and have the same
    id. So the column with this id (`group`) is one whose equal values are always adjacent.
    """
    *others, item, click = columns
    times = _times(others)
    ids = [
        column
        for column in others
        if column.type in ("int", "string") and not column.is_time and column.distinct > 1
    ]
    displays = [column for column in ids if not column.nulls and is_grouped(column)]
    group = max(displays, key=lambda column: column.distinct, default=None)
    users = [column for column in ids if column is not group]
    label = LabelGuess(click, has_shown=True, why="the last field says which of the shown items were clicked")
    return Roles(tuple(users), (item,), tuple(times), time_of_day_of(times, others), group, label)


def with_lists_of_items(columns: Sequence[SampledColumn]) -> list[SampledColumn]:
    """Returns the columns of a log of displays. Columns of strings that list items become columns of lists.

    Such strings contain, for example, earlier clicks. The column before the last one has the shown item.
    """
    items = columns[-2].values.unique()
    result = []
    for column in columns:
        if column.type == "string" and column is not columns[-2] and len(column.values.drop_null()):
            words = pc.split_pattern_regex(column.values.drop_null().unique(), r"\s+")
            known = pc.mean(pc.cast(pc.is_in(pc.list_flatten(words).unique(), items), pa.float64())).as_py()
            several = pc.mean(pc.cast(pc.greater(pc.list_value_length(words), 1), pa.float64())).as_py()
            if known >= _KNOWN_ITEMS and several >= _SEVERAL_ITEMS:
                column = replace(column, type="list<string>", separator=" ")
        result.append(column)
    return result


def label_of(columns: Sequence[SampledColumn], *, has_names: bool) -> LabelGuess:
    """Returns which rows of a log are clicks.

    The label is a column of events. If there is none, the label is a column of numbers or flags whose name
    means a label or a rating. If the files do not name their columns, the label is the first column, provided
    that it has only 0 and 1.

    A column such as `content_type` may contain a word for an event by chance. Columns of numbers and flags
    are preferred to it.
    """
    events = [guess for column in columns if (guess := _events_in(column, has_names=has_names)) is not None]
    certain = [guess for guess in events if guess.is_certain]
    if certain:
        return certain[0]
    flags_and_ratings = labels_of_numbers(columns) if has_names else []
    if flags_and_ratings:
        return flags_and_ratings[0]
    ids = possible_keys(columns, max((len(column.values) for column in columns), default=0))
    for guess in events:
        if guess.column is not None and not is_attribute(guess.column, ids):
            return guess
    for pattern in (_WEAK_LABEL_NAME, _SHARE_NAME) if has_names else ():
        guess_of_numbers = _label_of_numbers(columns, pattern)
        if guess_of_numbers is not None:
            return guess_of_numbers
    if not has_names and columns and _is_binary(columns[0]):
        return LabelGuess(columns[0], has_shown=True, why="the first column has only 0 and 1")
    return LabelGuess(None)


def labels_of_numbers(columns: Sequence[SampledColumn]) -> list[LabelGuess]:
    """Returns up to two labels: from the first column named like `clicked`, then from one named `rating`."""
    guesses = [_label_of_numbers(columns, pattern) for pattern in (LABEL_NAME, _RATING_NAME)]
    by_source = {guess.column.source: guess for guess in reversed(guesses) if guess and guess.column}
    return list(reversed(by_source.values()))


def _label_of_numbers(columns: Sequence[SampledColumn], pattern: re.Pattern[str]) -> LabelGuess | None:
    """Returns a guess for the label: the first column whose name matches `pattern` and whose values fit."""
    for column in columns:
        if (
            pattern.search(column.source)
            and not NO_LABEL_NAME.search(column.source)
            and column.type in ("int", "float", "decimal", "bool", "string")
            and not column.is_time
        ):
            is_rating = pattern in (_RATING_NAME, _SHARE_NAME)
            is_text = column.type == "string"
            guess = _answers_in(column) if is_text else _numbers_in(column, is_rating=is_rating)
            if guess is not None:
                return guess
    return None


def _answers_in(column: SampledColumn) -> LabelGuess | None:
    """Returns a guess for the label from a column with two strings, such as `ja` and `nein` (in NO_TEXTS)."""
    if column.type != "string" or column.distinct != 2:
        return None
    texts = sorted(pc.unique(column.values.drop_null().combine_chunks()).to_pylist())
    no = [text for text in texts if text.strip().lower() in NO_TEXTS]
    yes = [text for text in texts if text not in no]
    if len(yes) != 1:
        return None
    return LabelGuess(
        column, None, {yes[0]: 1.0}, shown=(no[0],), has_shown=True, why=f"{column.source} has only {texts}"
    )


def events_of(column: SampledColumn) -> LabelGuess | None:
    """Returns which rows are clicks, if the user named `column` as the column of events.

    Returns None if the column cannot contain events. If no event is in _EVENT_WEIGHTS, all events are clicks
    with the weight 1.
    """
    known = _answers_in(column) or _events_in(column, has_names=True)
    if known is not None or column.type != "string" or not 1 <= column.distinct <= _MOST_EVENTS:
        return known
    events = sorted(pc.unique(column.values.drop_null().combine_chunks()).to_pylist())
    return LabelGuess(
        column, None, dict.fromkeys(events, 1.0), why=f"{column.source} has the events {events}"
    )


def possible_events(
    columns: Sequence[SampledColumn], others: Sequence[SampledColumn | None]
) -> list[SampledColumn]:
    """Returns the columns that may contain the event of each row: few distinct strings, and no nulls.

    A column is left out if its name says that it is an attribute, if its strings do not look like events, or
    if it depends on an id. For example, all rows of a receipt have the same `branch`. A column whose name
    certainly means events is not left out for these reasons.

    Args:
        columns: the columns of the log.
        others: columns that have another role.
    """
    taken = {column.source for column in others if column is not None}
    few = [
        column
        for column in columns
        if column.source not in taken
        and column.type == "string"
        and not column.nulls
        and _FEWEST_EVENTS <= column.distinct <= _MOST_UNKNOWN_EVENTS
        and len(column.values) >= _ROWS_OF_AN_EVENT * column.distinct
    ]
    ids = possible_keys(columns, max((len(column.values) for column in columns), default=0))
    return [column for column in few if _may_have_events(column, ids)]


def _may_have_events(column: SampledColumn, ids: Sequence[SampledColumn]) -> bool:
    """Returns whether the name and the values of a column with few distinct strings look like events."""
    name = plain_name(column.source)
    if CERTAIN_EVENT_NAME.search(name):
        return True
    if is_attribute(column, ids):
        return False
    return bool(_EVENT_NAME.search(name) or LABEL_NAME.search(column.source)) or all(
        _ACTION.fullmatch(text) and (text[0].islower() or (text.isupper() and len(text) > 2))
        for text in pc.unique(column.values.combine_chunks()).to_pylist()
    )


def is_attribute(column: SampledColumn, ids: Sequence[SampledColumn]) -> bool:
    """Returns whether the name of a column means an attribute, or its values depend on an id."""
    if _ATTRIBUTE_NAME.search(plain_name(column.source)):
        return True
    return any(depends_on(column, one) for one in ids if one.source != column.source)


def _events_in(column: SampledColumn, *, has_names: bool) -> LabelGuess | None:
    """Returns which events of a column are clicks; None if it does not contain events.

    At least half of the distinct values must be known events, unless the column's name certainly means
    events. With such a name, the result is certain. It is also certain if all values are known, and the name
    is not one such as `content_type`.
    """
    if column.type != "string" or not 1 <= column.distinct <= _MOST_EVENTS:
        return None
    events = pc.unique(column.values.drop_null().combine_chunks()).to_pylist()
    shown = [event for event in events if set(_SHOWN) & {event.lower(), *_words_of(event)}]
    weights = {event: _event_weight(event) for event in events if event not in shown}
    known = {event: weight for event, weight in weights.items() if weight is not None}
    name = plain_name(column.source)
    is_named = has_names and bool(CERTAIN_EVENT_NAME.search(name))
    if (
        not known
        or (len(known) + len(shown) < len(events) / 2 and not is_named)
        or (len(events) == 1 and not is_named)
    ):
        return None
    others = tuple(sorted(event for event in events if event not in known and event not in shown))
    is_of_type = has_names and name != "type" and bool(_EVENT_NAME.search(name))
    is_known = all(_NO_EVENT & set(_words_of(event)) for event in others)
    is_certain = not has_names or is_named or (is_known and not is_of_type)
    why = f"{column.source} has the events {sorted(events)}"
    weights_of_clicks = dict.fromkeys(known, 1.0) if shown else known
    return LabelGuess(
        column, None, weights_of_clicks, others, tuple(shown), bool(shown), why=why, is_certain=is_certain
    )


def _event_weight(event: str) -> float | None:
    """Returns the weight of an event, such as `purchase` or `play.start`; None if it is not known.

    If the whole name has no weight, returns the largest weight of its words, or None if one of them is in
    _NO_EVENT.
    """
    whole = _EVENT_WEIGHTS.get(event.lower())
    words = _words_of(event)
    if whole is not None or _NO_EVENT & set(words):
        return whole
    return max((_EVENT_WEIGHTS[word] for word in words if word in _EVENT_WEIGHTS), default=None)


def _words_of(event: str) -> list[str]:
    """Returns the words of the name of an event in lower case. Plurals such as `clicks` become singular."""
    words = plain_name(event).split("_")
    return [word[:-1] if word[-1:] == "s" and word[:-1] in _EVENT_WORDS else word for word in words]


def _numbers_in(column: SampledColumn, *, is_rating: bool) -> LabelGuess | None:
    if _is_binary(column):
        return LabelGuess(column, has_shown=True, why=f"{column.source} has only 0 and 1")
    if column.type == "bool":
        # A boolean column with one value and nulls is not chosen here. Later, `init` may ask the user whether
        # the rows with the value are clicks.
        is_flag = column.distinct == 2 or not column.nulls
        return (
            LabelGuess(column, has_shown=True, why=f"{column.source} is true or false") if is_flag else None
        )
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
    if column.type not in ("int", "float", "decimal") or column.distinct != 2:
        return False
    return set(numbers_of(column.values).tolist()) == {0.0, 1.0}


def _times(columns: Sequence[SampledColumn]) -> list[SampledColumn]:
    """Returns the columns that may contain the times of rows: timestamps, then integers, then dates.

    Within each kind, columns whose names mean a time come first. A column with a single value is left out,
    unless the value is a date and another column has times of day.
    """
    fewest = 1 if _times_of_day(columns) else 2
    fitting = [
        (number, column)
        for number, column in enumerate(columns)
        if column.is_time
        and not _NOT_EVENT_TIME.search(column.source)
        and column.distinct >= (fewest if column.type == "date" or has_midnights(column) else 2)
    ]
    order = {"timestamp": 0, "int": 1, "date": 2}
    fitting.sort(key=lambda one: (order[one[1].type], not _TIME_WORDS.search(one[1].source), one[0]))
    return [column for _, column in fitting]


def time_of_day_of(times: Sequence[SampledColumn], columns: Sequence[SampledColumn]) -> SampledColumn | None:
    """Returns the column with the time of day of rows; None if there is none, or if it is not needed.

    It is needed if the most likely time of the rows, which comes first in `times`, has only dates.
    """
    if not times or not (times[0].type == "date" or has_midnights(times[0])):
        return None
    return next(iter(_times_of_day(columns)), None)


def _times_of_day(columns: Sequence[SampledColumn]) -> list[SampledColumn]:
    """Returns the columns with times of day. Columns whose names mean a time come first."""
    fitting = [
        column
        for column in columns
        if column.is_time_of_day and column.distinct > 1 and not _NOT_EVENT_TIME.search(column.source)
    ]
    return sorted(fitting, key=lambda column: not _TIME_WORDS.search(column.source))


def title_of(columns: Sequence[SampledColumn]) -> SampledColumn | None:
    """Returns the column whose name says that it contains the titles of items; None without such a column."""
    return _text_named((*_TITLE_NAMES, *_FOREIGN_TITLES), columns)


def title_by_values(columns: Sequence[SampledColumn]) -> SampledColumn | None:
    """Returns the column of a table of items whose strings look most like titles; None if there is none.

    Such a column has strings of several words, and they are the longest and most varied ones. A column with a
    name such as `description` is returned only if no other column fits, and if its strings are as short as
    titles.
    """
    named = [column for column in columns if _NO_TITLE_NAME.search(plain_name(column.source))]
    best = _most_like_titles([column for column in columns if column not in named], _LONGEST_TITLE)
    short = [column for column in named if _DESCRIPTION_NAME.search(plain_name(column.source))]
    return best or _most_like_titles(short, _SHORT_TITLE)


def _most_like_titles(columns: Sequence[SampledColumn], longest: int) -> SampledColumn | None:
    """Returns the column with the longest and most varied strings; None if no column looks like titles.

    The mean length of its strings is at most `longest` characters.
    """
    best, most = None, 0.0
    for column in columns:
        is_text = column.type == "string" or (column.type == "list<string>" and column.separator == " ")
        if not is_text:
            continue
        texts = column.values.drop_null()
        if not len(texts):
            continue
        distinct = column.distinct / len(texts)
        length = pc.mean(pc.utf8_length(texts)).as_py()
        has_words = pc.match_substring_regex(texts, r"\pL[^\pL]* .*\pL|[^\x00-\x7F]")
        share = pc.sum(has_words).as_py() / len(texts)
        is_address = pc.any(pc.match_substring_regex(texts[:100], "^https?://|^/")).as_py()
        if distinct < _TITLE_DISTINCT or length > longest or share < _TITLE_WORDS or is_address:
            continue
        if distinct * length > most:
            best, most = column, distinct * length
    return best


def has_addresses(column: SampledColumn) -> bool:
    """Returns whether nearly all of the first strings of a column are e-mail addresses."""
    texts = column.values.drop_null().slice(0, _MOST_ADDRESSES)
    if column.type not in ("string", "list<string>") or not pa.types.is_string(texts.type) or not len(texts):
        return False
    fitting = pc.sum(pc.match_substring_regex(texts, r"^[^@\s]+@[^@\s]+\.[^@\s.]+$")).as_py()
    return bool(fitting >= _ADDRESSES * len(texts))


@dataclass(frozen=True)
class StockGuess:
    """The column of a table of items that shows whether an item is in stock.

    Attributes:
        column: the column.
        sold_out: the strings that mean out of stock; empty for numbers and flags.
        is_certain: whether the name and the values of the column leave no doubt.
    """

    column: SampledColumn
    sold_out: tuple[str, ...]
    is_certain: bool


def stock_of(columns: Sequence[SampledColumn]) -> StockGuess | None:
    """Returns the column whose name says that it contains the stock of items; None without such a column.

    The result is certain if the smallest number is 0 and others are larger, if flags are both true and false,
    or if some strings mean out of stock and others do not.
    """
    for column in columns:
        name = plain_name(column.source)
        is_opposite = bool(_SOLD_OUT_NAME.search(name))
        if (is_opposite or _STOCK_NAME.search(name)) and not _NO_STOCK_NAME.search(name):
            guess = _sold_out_in(column) if is_opposite else _stock_in(column)
            if guess is not None:
                return guess
    return None


def _sold_out_in(column: SampledColumn) -> StockGuess | None:
    """Returns what a column named like `sold_out` says about stock; None without strings such as `true`."""
    if not pa.types.is_string(column.values.type) or column.distinct > _MOST_EVENTS:
        return None
    texts = pc.unique(column.values.drop_null().combine_chunks()).to_pylist()
    sold_out = tuple(sorted(text for text in texts if text.lower() in _TRUE))
    return StockGuess(column, sold_out, is_certain=len(texts) == 2) if sold_out else None


def _stock_in(column: SampledColumn) -> StockGuess | None:
    """Returns what a column named like `in_stock` says about stock; None if its values do not fit."""
    if column.type == "string" and column.distinct <= _MOST_EVENTS:
        texts = pc.unique(column.values.drop_null().combine_chunks()).to_pylist()
        sold_out = tuple(sorted(text for text in texts if _SOLD_OUT.fullmatch(text)))
        return StockGuess(column, sold_out, is_certain=len(sold_out) < len(texts)) if sold_out else None
    if column.type == "bool":
        return StockGuess(column, (), is_certain=column.distinct == 2)
    if column.type in ("int", "float") and not column.is_time:
        numbers = numbers_of(column.values)
        return StockGuess(column, (), is_certain=bool(len(numbers)) and numbers.min() == 0 < numbers.max())
    return None


def image_of(columns: Sequence[SampledColumn]) -> SampledColumn | None:
    """Returns the column with the addresses of pictures in a table of items; None without such a column."""
    return _text_named(_IMAGE_NAMES, columns)


def _text_named(names: Sequence[str], columns: Sequence[SampledColumn]) -> SampledColumn | None:
    """Returns the column of strings whose name is the earliest one in `names`; None without such a column.

    The words of titles are separated by blanks or commas, so the type of a title column may be list<string>.
    """
    by_name = {
        plain_name(column.source): column
        for column in columns
        if column.type in ("string", "list<string>") and column.nulls < len(column.values)
    }
    return next((by_name[name] for name in names if name in by_name), None)


def _keys_by_name(
    with_anonymous: Sequence[SampledColumn], ids: Sequence[SampledColumn]
) -> tuple[list[SampledColumn], list[SampledColumn]]:
    users = _by_words(with_anonymous, _USER_WORDS)
    items = [column for column in _by_words(ids, _ITEM_WORDS) if column not in users[:1]]
    users = [column for column in users if column not in items[:1]]
    return users, items


def possible_keys(columns: Sequence[SampledColumn], rows: int) -> list[SampledColumn]:
    """Returns the columns whose values may be ids of users or items: many values that occur several times."""
    ids = [one for one in columns if one.type in ("int", "string") and not one.is_time]
    return [one for one in ids if _FEWEST_KEYS <= one.distinct <= _MOST_KEYS * max(rows - one.nulls, 1)]


def is_filled(column: SampledColumn) -> bool:
    """Returns whether a column has few nulls, so that it may be a key."""
    return column.nulls <= MOST_NULL_KEYS * max(len(column.values), 1)


def doubt_of_name(column: SampledColumn, role: str) -> str | None:
    """Returns a clause that says why the name of a column does not prove its role; None if it does.

    Args:
        column: a column that was chosen by its name.
        role: user or item.
    """
    name, words = plain_name(column.source), _USER_WORDS if role == "user" else _ITEM_WORDS
    has_mail = role == "user" and (_ADDRESS_NAME.search(name) or has_addresses(column))
    if _weight(name, words) < _SURE and not has_mail:
        return f"no column has a more usual name for the {role}"
    if column.distinct < _FEWEST_KEYS and not (is_id_name(name) or name in words):
        return f"it has only {column.distinct} different values"
    return None


def is_key_name(source: str) -> bool:
    """Returns whether the name of a column says that it has ids of users or items, such as `item_no`."""
    name, words = plain_name(source), {**_USER_WORDS, **_ITEM_WORDS}
    is_id = bool(_KEY_END.search(name)) or name in words or name.removesuffix("id") in words
    return is_id and _weight(name, words) >= _SURE


def is_id_name(source: str) -> bool:
    """Returns whether the name of a column says that it contains ids, such as `game_id` or `Bonnummer`."""
    return bool(_ID_WORD.search(plain_name(source)))


def _by_words(ids: Sequence[SampledColumn], words: Mapping[str, int]) -> list[SampledColumn]:
    """Returns the columns whose names contain one of the words, the best column first.

    `words` maps each word to its points; a column with more points is better. An id such as `product_id` is
    preferred to `product_name`. A column with fewer than `_FEWEST_KEYS` distinct values is returned only if
    its name contains a word with at least `_SURE` points. In the search for users, a column of e-mail
    addresses has at least `_ADDRESS_POINTS` points, even if it has few values.
    """

    def points(column: SampledColumn) -> float:
        name = plain_name(column.source)
        weight, has_few = _weight(name, words), column.distinct < _FEWEST_KEYS
        is_id = bool(_ID_WORD.search(name)) or name in words
        value = float(weight + (5 if is_id else 0)) if weight else 0.0
        if words is _USER_WORDS and (_ADDRESS_NAME.search(name) or has_addresses(column)):
            value = max(value, _ADDRESS_POINTS)
        if not value or (has_few and value < _ADDRESS_POINTS and weight < _SURE):
            return 0.0
        # Columns with few values, such as quantities or kinds of items, are more likely attributes.
        return value - (0 if is_filled(column) else 1) - (_DOUBT + 1 if has_few and not is_id else 0)

    scored = sorted(((points(column), -number) for number, column in enumerate(ids)), reverse=True)
    best = scored[0][0] if scored else 0.0
    return [ids[-place] for value, place in scored if value > 0 and value >= best - _DOUBT]


def _weight(name: str, words: Mapping[str, int]) -> int:
    """Returns the highest weight in `words` of a word that `name` contains; 0 if it contains none."""
    return max((weight for word, weight in words.items() if word in name), default=0)


def _keys_by_order(
    ids: Sequence[SampledColumn], rows: int
) -> tuple[list[SampledColumn], list[SampledColumn]]:
    """Returns the columns of users and items in a log without column names.

    The first key column has the users.
    """
    keys = possible_keys(ids, rows)
    return keys[:1], keys[1:]
