"""Feature tables of what users chose: keys, features of users and of items, and items that change by day."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from storage.feature_spec import Feature, FeatureSpec
from tests.training.feature_rows import Rows
from tests.training.feature_tables import write_file
from training.data.sharding import DataFile

USERS, ITEMS = 12, 30
SPEC = FeatureSpec(
    (
        Feature("age", "dense", "float32", "user"),
        Feature("price", "dense", "float32", "item"),
        Feature("hour", "dense", "float32", "context"),
        Feature("user", "categorical", "int32", "user", USERS + 3),
        Feature("item", "categorical", "int32", "item", ITEMS + 3),
        Feature("genres", "multi_hot", "list<int32>", "item", 9),
    ),
    ("row_id", "user_key", "item_key"),
    "w1",
)


@dataclass(frozen=True)
class Choices:
    """The rows of one day: users (N,), items (N,), labels (N,), and the feature rows themselves."""

    users: NDArray[np.int64]
    items: NDArray[np.int64]
    rows: Rows


def genres_of(item: int) -> list[int]:
    return [3 + (item + step) % 6 for step in range(item % 4)]


def choices(rows: int, seed: int, day: int, like: float = 0.3) -> Choices:
    """Random rows of a day. The price of an item changes with every row, and rises by 1 a day."""
    rng = np.random.default_rng(seed)
    users = rng.integers(0, USERS, rows)
    items = np.minimum(rng.geometric(0.12, rows) - 1, ITEMS - 1)  # a few items are popular
    labels = (rng.random(rows) < like).astype(np.float32)
    dense = np.stack([users / USERS, day + np.arange(rows) / 1e4, rng.random(rows)], axis=1).astype(
        np.float32
    )
    categorical = np.stack([users + 3, items + 3], axis=1).astype(np.int32)
    lists = ([genres_of(int(item)) for item in items],)
    keys = ([f"u{user}" for user in users], [f"i{item}" for item in items])
    return Choices(users, items, Rows(labels, dense, categorical, lists, keys))


def write_days(folder: Path, days: list[Choices], file_rows: int = 170) -> list[DataFile]:
    """Writes each day from 2026-01-01 in files of `file_rows` rows."""
    files = []
    for number, day in enumerate(days):
        for first in range(0, len(day.rows), file_rows):
            part = day.rows.part(first, file_rows)
            path = folder / f"day-{number}-{first}.parquet"
            write_file(path, SPEC, part)
            files.append(DataFile(str(path), len(part), dt=f"2026-01-{1 + number:02d}"))
    return files
