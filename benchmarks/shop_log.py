"""Generates the log of an invented web shop, with tables of users and items, as CSV files.

The log has seventeen days: the window of a run (sixteen days), and the day of the next run. At the scale 1, a day has
10,000 events of 5,000 users and 2,000 items. Users and events grow with the scale; the number of items stays the
same. The files are messy, as exports are:

* In each day, 1% of the lines are duplicates, and some lines are broken: fields are missing or added, the separator
  is wrong, or the price is no number. In 3% of the lines the user is empty, in 2% the price, in 1% the device.
* The table of users lacks 3% of the users and has as many users without events. 30% of its birth years are empty.
* The table of items lacks 2% of the items and has as many items without events. 5% of its brands are empty, and all
  titles have quotes.

The items that a user views depend on the user's categories and on the popularity of the items, so that a model can
learn them.
"""

from __future__ import annotations

import json
import shutil
import uuid
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

FORMAT = 1  # of the generated files
FIRST_DAY, DAYS = date(2026, 3, 2), 17
EVENTS_PER_DAY, USERS, ITEMS = 10_000, 5_000, 2_000
CATEGORIES = ("shoes", "shirts", "bags", "toys", "books", "garden", "kitchen", "phones", "audio", "sports")
DEVICES, COUNTRIES = ("mobile", "desktop", "tablet"), ("DE", "FR", "PL", "US")
DEVICE_SHARES = (0.6, 0.33, 0.07)
BROKEN_LINES = 5  # of a day
EVENTS = ("view", "cart", "purchase")  # their weights are 1, 2 and 3

_DUPLICATES, _NO_USER, _NO_PRICE, _NO_DEVICE = 0.01, 0.03, 0.02, 0.01
_NO_USER_ROW, _NO_BIRTH_YEAR, _NO_ITEM_ROW, _NO_BRAND = 0.03, 0.3, 0.02, 0.05
_VIEWS_AFTER_FIRST, _CART, _PURCHASE = 4, 0.12, 0.4
_EVENTS_PER_SESSION = (1 + _VIEWS_AFTER_FIRST) * (1 + _CART * (1 + _PURCHASE))
_MORE_SESSIONS = 1.15  # enough that the events of a day never run out

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ShopLog:
    """A generated log.

    Attributes:
        folder: has the files `clicks/DATE.csv`, `users.csv` and `items.csv`.
        dates: the days as ISO dates, oldest first.
    """

    folder: Path
    dates: tuple[str, ...]

    @property
    def files(self) -> list[str]:
        """Returns the paths of all files."""
        return sorted(str(path) for path in self.folder.rglob("*.csv"))


@dataclass(frozen=True)
class _Shop:
    """What stays the same on all days, for U users and I items.

    Attributes:
        activity: (U,) cumulative probability that a session belongs to the user.
        tastes: (U, C) cumulative probability that a view of the user has the category.
        category: (I,) number of each item's category.
        by_category: (I,) item numbers, ordered by category.
        popularity: (I,) cumulative weight of the items in this order, from 0 to 1 in each category, plus the number of
            the category. So it ascends over all categories.
        price: (I,) price of each item.
    """

    activity: Floats
    tastes: Floats
    category: Numbers
    by_category: Numbers
    popularity: Floats
    price: Floats


def make_log(cache: Path, scale: float, seed: int = 1) -> ShopLog:
    """Returns a log. Generates its files if they do not exist.

    Args:
        cache: the folder of all generated logs.
        scale: multiple of the users and events.
        seed: the seed of the random numbers.
    """
    dates = tuple((FIRST_DAY + timedelta(day)).isoformat() for day in range(DAYS))
    folder = cache / f"shop-v{FORMAT}-{scale:g}x-seed{seed}"
    index = folder / "index.json"
    if not index.exists():
        attempt = folder.with_name(f"{folder.name}-{uuid.uuid4().hex[:8]}")
        (attempt / "clicks").mkdir(parents=True)
        rng = np.random.default_rng([FORMAT, seed])
        users = max(10, round(USERS * scale))
        shop = _make_shop(rng, users)
        _write_users(rng, attempt / "users.csv", users)
        _write_items(rng, attempt / "items.csv", shop)
        for day, dt in enumerate(dates):
            events = _events(rng, shop, day, max(100, round(EVENTS_PER_DAY * scale)))
            _write_day(rng, attempt / f"clicks/{dt}.csv", events)
        (attempt / "index.json").write_text(json.dumps({"dates": dates}), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)  # a folder without an index is left from a killed run
        attempt.rename(folder)
    return ShopLog(folder, dates)


def _make_shop(rng: np.random.Generator, users: int) -> _Shop:
    activity = rng.gamma(0.6, 1.0, users) + 1e-6
    tastes = rng.dirichlet(np.full(len(CATEGORIES), 0.3), users)
    category = rng.integers(0, len(CATEGORIES), ITEMS)
    weight = rng.permutation(np.arange(1, ITEMS + 1) ** -0.8)
    by_category = np.argsort(category, kind="stable")
    popularity = np.empty(ITEMS)
    for number in range(len(CATEGORIES)):
        members = np.flatnonzero(category[by_category] == number)
        total = np.cumsum(weight[by_category[members]])
        popularity[members] = number + total / total[-1]
    return _Shop(
        activity=np.cumsum(activity) / activity.sum(),
        tastes=np.cumsum(tastes, axis=1),
        category=category,
        by_category=by_category,
        popularity=popularity,
        price=np.round(np.exp(rng.normal(3.0, 0.8, ITEMS)), 2),
    )


def _events(rng: np.random.Generator, shop: _Shop, day: int, rows: int) -> pd.DataFrame:
    """Returns the events of a day in the order of time, with duplicates and empty fields."""
    duplicates = round(_DUPLICATES * rows)
    sessions = max(50, round(_MORE_SESSIONS * rows / _EVENTS_PER_SESSION))
    views = 1 + rng.poisson(_VIEWS_AFTER_FIRST, sessions)
    session = np.repeat(np.arange(sessions), views)
    session_user = np.searchsorted(shop.activity, rng.random(sessions)).clip(max=len(shop.activity) - 1)
    user = session_user[session]
    category = (shop.tastes[user] < rng.random(len(user))[:, None]).sum(1).clip(max=len(CATEGORIES) - 1)
    place = np.searchsorted(shop.popularity, category + rng.random(len(user))).clip(max=ITEMS - 1)
    item = shop.by_category[place]
    gaps = np.cumsum(rng.integers(5, 180, len(user)))
    first = np.cumsum(views) - views
    seconds = rng.integers(0, 80_000, sessions)[session] + gaps - gaps[first][session]
    carted = rng.random(len(user)) < _CART
    bought = carted & (rng.random(len(user)) < _PURCHASE)
    view = np.concatenate([np.arange(len(user)), np.flatnonzero(carted), np.flatnonzero(bought)])
    kind = np.repeat([0, 1, 2], [len(user), carted.sum(), bought.sum()])
    kept = np.argsort(session[view], kind="stable")[: rows - duplicates]  # whole sessions, but for the last
    view, kind = view[kept], kind[kept]
    time = (seconds[view] + np.array([0, 20, 90])[kind]).clip(max=86_399)
    midnight = int(pd.Timestamp(FIRST_DAY + timedelta(day)).timestamp())
    discount = np.where((day > DAYS // 2) & (item[view] % 7 == 0), 0.8, 1.0)
    device = rng.choice(len(DEVICES), sessions, p=DEVICE_SHARES)[session[view]]
    events = pd.DataFrame(
        {
            "ts": midnight + time,
            "session": pd.Series(session[view]).map(f"{day:02d}-{{:06d}}".format),
            "user": pd.Series(user[view]).map("u{}".format),
            "item": pd.Series(item[view]).map("sku-{:05d}".format),
            "price": np.round(shop.price[item[view]] * discount, 2),
            "category": np.array(CATEGORIES)[category[view]],
            "device": np.array(DEVICES, object)[device],
            "event": np.array(EVENTS)[kind],
            "weight": kind + 1,
        }
    )
    repeated = events.iloc[rng.choice(len(events), duplicates, replace=False)]
    events = pd.concat([events, repeated]).sort_values("ts", kind="stable", ignore_index=True)
    for name, share in (("user", _NO_USER), ("price", _NO_PRICE), ("device", _NO_DEVICE)):
        events[name] = events[name].mask(rng.random(len(events)) < share)
    return events


def _write_day(rng: np.random.Generator, path: Path, events: pd.DataFrame) -> None:
    """Writes the file of a day, in which some lines are broken."""
    header, *lines = events.to_csv(index=False).splitlines()
    broken = rng.choice(len(lines), BROKEN_LINES, replace=False)
    for number, line in enumerate(broken):
        fields = lines[line].split(",")
        lines[line] = (
            ",".join(fields[:-2]),
            ",".join([*fields, "more"]),
            ";".join(fields),
            ",".join([*fields[:4], "n/a", *fields[5:]]),
            ",".join([*fields[:3], 'sku"' + fields[3][3:], *fields[4:]]),
        )[number]
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")


def _write_users(rng: np.random.Generator, path: Path, users: int) -> None:
    missing = round(users * _NO_USER_ROW)
    numbers = rng.permutation(np.arange(users + missing))  # users from `users` on have no events
    numbers = numbers[~np.isin(numbers, rng.choice(users, missing, replace=False))]
    signup = np.datetime64("2024-01-01") + rng.integers(0, 700, len(numbers)).astype("timedelta64[D]")
    birth_year = rng.integers(1950, 2008, len(numbers)).astype(float)
    birth_year[rng.random(len(numbers)) < _NO_BIRTH_YEAR] = np.nan
    pd.DataFrame(
        {
            "user": [f"u{number}" for number in numbers],
            "country": rng.choice(COUNTRIES, len(numbers)),
            "birth_year": birth_year,
            "newsletter": rng.random(len(numbers)) < 0.4,
            "signup": signup.astype(str),
        }
    ).to_csv(path, index=False)


def _write_items(rng: np.random.Generator, path: Path, shop: _Shop) -> None:
    missing = round(ITEMS * _NO_ITEM_ROW)
    numbers = rng.permutation(np.arange(ITEMS + missing))  # items from ITEMS on have no events
    numbers = numbers[~np.isin(numbers, rng.choice(ITEMS, missing, replace=False))]
    known = numbers % ITEMS
    brand = pd.Series(rng.integers(0, 80, len(numbers))).map("brand{}".format)
    category = np.array(CATEGORIES)[shop.category[known]]
    pd.DataFrame(
        {
            "item": [f"sku-{number:05d}" for number in numbers],
            "category": category,
            "brand": brand.mask(rng.random(len(numbers)) < _NO_BRAND),
            "list_price": shop.price[known],
            "title": [
                f'The "{name}" of number {number}' for name, number in zip(category, numbers, strict=True)
            ],
        }
    ).to_csv(path, index=False)
