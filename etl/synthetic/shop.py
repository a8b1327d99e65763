"""Generates the export of an invented web shop: events by day, and tables of users and items, as CSV files.

docs/tutorial.md uses the export, because it is easy to read. The generator of click logs (generate.py) serves
another purpose. It writes logs of impressions with known click probabilities, for measurements.

In the shop, each user prefers some categories and one price level, and some items are more popular than
others. After an item, users often view its companion, which is a matching item. So a model can predict views
better than a list of popular items does, but no model can predict all views.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from pathlib import Path

import numpy as np

from conf.errors import ConfigError

FIRST_DAY = date(2026, 1, 1)
# Part of each random seed. Increase this number if changed code draws other values from the same seed.
_FORMAT = 1
_BRANDS = ("Nordvik", "Brückner", "Olmeca", "Atelier Noé", "Hartwell & Sons", "Kumo", "Faro", "Łódź Works")
_COLOURS = ("black", "white", "navy", "olive", "red", "sand")
_NOUNS = {
    "shoes": ("running shoes", "sneakers", "boots", "sandals", "hiking shoes"),
    "bags": ("backpack", "tote bag", "suitcase", "wallet", "messenger bag"),
    "kitchen": ("kettle", "pan", "knife", "toaster", "scale"),
    "garden": ("watering can", "parasol", "planter", "hose", "bench"),
    "audio": ("headphones", "speaker", "turntable", "microphone", "earphones"),
    "screens": ('monitor 24"', 'monitor 27"', 'tablet 11"', 'e-reader 6"', 'projector 100"'),
    "sports": ("yoga mat", "dumbbells, pair", "tennis racket", "football", "jump rope"),
    "books": ("cookbook", "travel guide", "atlas", "novel", "sketchbook"),
}
_COUNTRIES, _COUNTRY_SHARES = ("DE", "FR", "PL", "GB"), (0.4, 0.25, 0.2, 0.15)
_LEVELS = 3  # number of price levels
_ITEMS_PER_CATEGORY = 15
# An item's popularity is multiplied by this factor for each level between its price level and the user's.
_LEVEL_FACTOR = 0.25
_TOGETHER = 0.35  # Probability that the next viewed item is the companion of the item before.
_ACTIVE_A_DAY = 0.55  # Mean share of the users who visit the shop on a day.
_MORE_VIEWS = 3.0  # Mean number of further views in a visit, after the first view.
_CART, _PURCHASE = 0.2, 0.4  # Probability that a view leads to a cart, and a cart to a purchase.


@dataclass(frozen=True)
class _Shop:
    """The properties of U users and I items that are the same on all days.

    Attributes:
        category, level, price: (I,) int64, int64 and float64: category, price level and price of each item.
        titles: the title of each item.
        companion: (I,) int64: the item that users often view after each item.
        choices: (U, I) float64: for each user, the cumulative probabilities with which the items are viewed.
        active: (U,) float64: the probability that a user visits the shop on a day.
    """

    category: np.ndarray
    level: np.ndarray
    price: np.ndarray
    titles: Sequence[str]
    companion: np.ndarray
    choices: np.ndarray
    active: np.ndarray


def write_shop(folder: Path, days: int, users: int, seed: int) -> list[str]:
    """Writes the files `events_<date>.csv`, `users.csv` and `items.csv`, and returns the dates, oldest first.

    The content of a day's file does not depend on the number of days. A file that already has the same
    content is not written again, so its modification time does not change.

    Args:
        folder: the folder of the files; it is created if it does not exist.
        days: number of days from FIRST_DAY on.
        users: number of users. On a day, about half of them visit the shop, and view about four items.
        seed: seed of the random numbers. Equal seeds give equal files.

    Raises:
        ConfigError: a number is not positive, or the files cannot be written.
    """
    if days < 1 or users < 1:
        raise ConfigError("--days and --users must be at least 1", "pass 1 or a larger number for both")
    shop = _shop_of(np.random.default_rng([_FORMAT, seed]), users)
    dates = [(FIRST_DAY + timedelta(day)).isoformat() for day in range(days)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / "users.csv", _users(np.random.default_rng([_FORMAT, seed, 1]), users))
        _write(folder / "items.csv", _items(shop))
        for day, dt in enumerate(dates):
            events = _events(np.random.default_rng([_FORMAT, seed, 2, day]), shop, FIRST_DAY + timedelta(day))
            _write(folder / f"events_{dt}.csv", events)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error}", "pass another folder") from error
    return dates


def _shop_of(rng: np.random.Generator, users: int) -> _Shop:
    categories, items = len(_NOUNS), len(_NOUNS) * _ITEMS_PER_CATEGORY
    category = np.repeat(np.arange(categories), _ITEMS_PER_CATEGORY)
    level = rng.integers(0, _LEVELS, items)
    popularity = rng.permutation(np.arange(1, items + 1) ** -0.7)
    companion = np.concatenate(
        [rng.permutation(np.flatnonzero(category == number)) for number in range(categories)]
    )
    tastes = rng.dirichlet(np.full(categories, 0.3), users)
    user_level = rng.integers(0, _LEVELS, users)
    fits = _LEVEL_FACTOR ** np.abs(level - user_level[:, None])  # (U, I)
    weights = tastes[:, category] * popularity * fits
    return _Shop(
        category=category,
        level=level,
        price=np.round(np.exp(rng.normal(2.5 + level, 0.3)), 2),
        titles=_titles(rng, category),
        companion=companion,
        choices=np.cumsum(weights, axis=1) / weights.sum(axis=1, keepdims=True),
        active=rng.beta(2, 2 * (1 - _ACTIVE_A_DAY) / _ACTIVE_A_DAY, users),
    )


def _titles(rng: np.random.Generator, category: np.ndarray) -> list[str]:
    nouns = list(_NOUNS.values())
    return [
        f"{rng.choice(_BRANDS)} {rng.choice(nouns[number])}, {rng.choice(_COLOURS)}" for number in category
    ]


def _users(rng: np.random.Generator, users: int) -> list[list[object]]:
    country = rng.choice(_COUNTRIES, users, p=_COUNTRY_SHARES)
    born, has_year = rng.integers(1950, 2008, users), rng.random(users) < 0.7
    newsletter = rng.random(users) < 0.4
    rows: list[list[object]] = [["user", "email", "country", "birth_year", "newsletter"]]
    for user in range(users):
        year = int(born[user]) if has_year[user] else ""
        email = f"{_user(user)}@mail.example"
        rows.append([_user(user), email, country[user], year, bool(newsletter[user])])
    return rows


def _items(shop: _Shop) -> list[list[object]]:
    names = list(_NOUNS)
    rows: list[list[object]] = [["item", "title", "category", "price", "image"]]
    for item, title in enumerate(shop.titles):
        picture = f"https://shop.example/pictures/{_item(item)}.jpg"
        rows.append([_item(item), title, names[shop.category[item]], f"{shop.price[item]:.2f}", picture])
    return rows


def _events(rng: np.random.Generator, shop: _Shop, day: date) -> list[list[object]]:
    """Returns the events of a day, ordered by time."""
    events: list[tuple[datetime, str, str, str]] = []
    midnight = datetime.combine(day, time())
    for user in np.flatnonzero(rng.random(len(shop.active)) < shop.active).tolist():
        now = midnight + timedelta(seconds=int(rng.integers(6 * 3600, 22 * 3600)))
        item = -1
        for _ in range(1 + int(rng.poisson(_MORE_VIEWS))):
            if item >= 0 and rng.random() < _TOGETHER:
                item = int(shop.companion[item])
            else:
                item = min(int(np.searchsorted(shop.choices[user], rng.random())), len(shop.titles) - 1)
            for kind in _kinds(rng):
                events.append((now, _user(user), _item(item), kind))
                now += timedelta(seconds=int(rng.integers(10, 120)))
    rows: list[list[object]] = [["time", "user", "item", "event"]]
    rows += [[f"{at:%Y-%m-%d %H:%M:%S}", *rest] for at, *rest in sorted(events)]
    return rows


def _kinds(rng: np.random.Generator) -> list[str]:
    """Returns the events of one visit to an item: a view, and perhaps a cart and a purchase."""
    carted = rng.random() < _CART
    bought = rng.random() < _PURCHASE
    return ["view", *(["cart"] if carted else []), *(["purchase"] if carted and bought else [])]


def _user(number: int) -> str:
    return f"u{number:05d}"


def _item(number: int) -> str:
    return f"sku-{number:04d}"


def _write(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Writes a file, unless it has the same content."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    content = text.getvalue().encode()
    if path.exists() and path.read_bytes() == content:
        return
    scratch = path.with_name(f"{path.name}.new")
    scratch.write_bytes(content)
    os.replace(scratch, path)
