"""Logs with users and items that a model does not know: features without Spark, for benchmarks/cold_start.py.

* `generated_log`: the generated log of benchmarks/quality.py. The first three days are train days. Lists of the
  seventh day are compared with the clicks of the eighth, and users and items appear on every day.
* `movielens_log`: MovieLens 100k. All ratings of 15% of the users and 15% of the films, drawn at random, are
  left out of the train rows, as in the experiments of DropoutNet (Volkovs et al. 2017). So are the last two
  positive ratings of every other user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from conf.types import Config
from etl.workflow.fitted_workflow import load_local
from storage.dataset import read_dataset, read_spec
from storage.feature_spec import (
    ITEM_KEY,
    LABEL,
    NUM_RESERVED_IDS,
    OOV_ID,
    ROW_ID,
    USER_KEY,
    Feature,
    FeatureSpec,
)
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths

KEYS = (ROW_ID, USER_KEY, ITEM_KEY)
TRAIN_DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
LATER_DAYS = ("2026-01-04", "2026-01-05", "2026-01-06", "2026-01-07")
CLICKED, DATASET = "2026-01-08", "2026-01-08"
MIN_COUNT = 5  # of the vocabularies of conf/datasets/generated.yaml
COLD_SHARE, HELD_OUT = 0.15, 2


@dataclass(frozen=True)
class ColdLog:
    """Train rows, and what lists are made from and compared with.

    Attributes:
        spec: the features.
        user, item: names of the features that are the ids of the user and of the item.
        train: maps each train day to its feature rows, with keys and label.
        users, items: the features of all users and all items for the lists, with their keys.
        context: the values of context features in lists.
        clicks: pairs of user_key and item_key that lists are compared with, without repeated rows. Its users
            and items are in `users` and `items`.
        excluded: pairs of user_key and item_key that must not be in lists.
        segment: the column of `users` for lists of the most popular items of a segment.
    """

    spec: FeatureSpec
    user: str
    item: str
    train: dict[str, pd.DataFrame]
    users: pd.DataFrame
    items: pd.DataFrame
    context: dict[str, Any]
    clicks: pd.DataFrame
    excluded: pd.DataFrame
    segment: str

    @cached_property
    def new_users(self) -> frozenset[str]:
        """Returns the users whose id the model does not know."""
        return frozenset(self.users.loc[self.users[self.user] == OOV_ID, USER_KEY])

    @cached_property
    def new_items(self) -> frozenset[str]:
        """Returns the items whose id the model does not know."""
        return frozenset(self.items.loc[self.items[self.item] == OOV_ID, ITEM_KEY])


def generated_log(lake: LakePaths, config: Config) -> ColdLog:
    """Reads the features of days of the generated log, and encodes users and items as of the train days.

    Args:
        lake: a lake with the dataset of DATASET.
        config: its configuration, with `keys`.
    """
    assert config.keys is not None
    dataset = read_dataset(lake, DATASET)
    version = dataset.workflow_version
    spec = read_spec(lake, version)
    days = {day: _read_day(lake, version, day) for day in (*TRAIN_DAYS, *LATER_DAYS, CLICKED)}
    train = pd.concat([days[day] for day in TRAIN_DAYS])
    ids = {config.keys.user: USER_KEY, str(config.keys.item): ITEM_KEY}
    vocabularies = {name: _vocabulary(train[key], MIN_COUNT) for name, key in ids.items()}
    encoded = {
        day: rows.assign(**{name: _encoded(rows[key], vocabularies[name]) for name, key in ids.items()})
        for day, rows in days.items()
    }
    known = pd.concat([encoded[day] for day in (*TRAIN_DAYS, *LATER_DAYS)], ignore_index=True)
    users, items = (
        _latest(known, spec, scope, key) for scope, key in (("user", USER_KEY), ("item", ITEM_KEY))
    )
    clicks = encoded[CLICKED].query(f"{LABEL} == 1")[[USER_KEY, ITEM_KEY]].drop_duplicates()
    clicks = clicks[clicks[USER_KEY].isin(users[USER_KEY]) & clicks[ITEM_KEY].isin(items[ITEM_KEY])]
    features = tuple(
        replace(feature, cardinality=len(vocabularies[feature.name]) + NUM_RESERVED_IDS)
        if feature.name in ids
        else feature
        for feature in spec.features
    )
    context = [feature.name for feature in spec.scoped("context")]
    values = load_local(lake, version).encode_values(config.score.context, context)
    return ColdLog(
        FeatureSpec(features, KEYS, "cold_start"),
        str(config.keys.user),
        str(config.keys.item),
        {day: encoded[day] for day in TRAIN_DAYS},
        users,
        items,
        values,
        clicks,
        clicks[:0],
        segment="C3",
    )


def _read_day(lake: LakePaths, version: str, day: str) -> pd.DataFrame:
    partition = lake.features(version).partition(day)
    files = data_files(partition, read_manifest(partition))
    return pd.concat(
        [pq.read_table(path, partitioning=None).to_pandas() for path in files], ignore_index=True
    )


def _latest(rows: pd.DataFrame, spec: FeatureSpec, scope: Any, key: str) -> pd.DataFrame:
    """Returns the features of the last row of each user or item. `rows` must be ordered by time."""
    columns = [feature.name for feature in spec.scoped(scope)]
    return rows.groupby(key).tail(1)[[key, *columns]].sort_values(key, ignore_index=True)


def movielens_log(folder: Path, seed: int = 5) -> ColdLog:
    """Reads MovieLens 100k in RecBole's format, and divides it; `seed` draws the new users and films."""
    ratings, users, films = (
        pd.read_csv(folder / f"ml-100k.{part}", sep="\t", dtype={f"{key}:token": str for key in _TOKENS})
        .rename(columns=lambda name: name.split(":")[0])
        .fillna("")
        for part in ("inter", "user", "item")
    )
    rng = np.random.default_rng(seed)
    new_users, new_films = (
        set(rng.permutation(keys)[: int(len(keys) * COLD_SHARE)]) for keys in (users.user_id, films.item_id)
    )
    positives = ratings[ratings.rating >= 4].sort_values("timestamp", kind="stable", ignore_index=True)
    is_new = positives.user_id.isin(new_users) | positives.item_id.isin(new_films)
    rest = positives[~is_new]
    held_out = rest.groupby("user_id").cumcount(ascending=False) < HELD_OUT
    train, later = rest[~held_out], pd.concat([rest[held_out], positives[is_new]])
    users, films, features = _movielens_features(train, users, films)
    rows = train.rename(columns={"user_id": USER_KEY, "item_id": ITEM_KEY})[[USER_KEY, ITEM_KEY]]
    rows = rows.merge(users, on=USER_KEY).merge(films, on=ITEM_KEY)
    rows[ROW_ID], rows[LABEL] = np.arange(len(rows)), np.float32(1)
    clicks = later.rename(columns={"user_id": USER_KEY, "item_id": ITEM_KEY})[[USER_KEY, ITEM_KEY]]
    spec = FeatureSpec(features, KEYS, "cold_start")
    excluded = rows[[USER_KEY, ITEM_KEY]]
    train_days = {TRAIN_DAYS[0]: rows}
    return ColdLog(spec, "user_id", "item_id", train_days, users, films, {}, clicks, excluded, "segment")


_TOKENS = ("user_id", "item_id", "gender", "occupation", "release_year", "age")


def _movielens_features(
    train: pd.DataFrame, users: pd.DataFrame, films: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame, tuple[Feature, ...]]:
    """Returns the features of users and of films, and their definitions: those of movielens.yaml and the ids."""
    genres = films["class"].str.split(" ")
    columns = {
        "user_id": (users.user_id, _vocabulary(train.user_id), "user"),
        "gender": (users.gender, _vocabulary(users.gender), "user"),
        "occupation": (users.occupation, _vocabulary(users.occupation), "user"),
        "item_id": (films.item_id, _vocabulary(train.item_id), "item"),
        "release_year": (films.release_year, _vocabulary(films.release_year), "item"),
    }
    ids = {name: _encoded(values, vocabulary) for name, (values, vocabulary, _) in columns.items()}
    age = users.age.astype(float)
    of_users = pd.DataFrame(
        {
            USER_KEY: users.user_id,
            "age": ((age - age.mean()) / age.std()).astype(np.float32),
            "segment": users.gender + (age // 15).astype(int).astype(str),
            **{name: ids[name] for name in ("user_id", "gender", "occupation")},
        }
    )
    genre_ids = _vocabulary(genres.explode())
    of_films = pd.DataFrame(
        {
            ITEM_KEY: films.item_id,
            **{name: ids[name] for name in ("item_id", "release_year")},
            "genres": [[genre_ids[genre] for genre in of_film] for of_film in genres],
        }
    )
    features = (
        Feature("age", "dense", "float32", "user"),
        *(
            Feature(name, "categorical", "int32", scope, len(vocabulary) + NUM_RESERVED_IDS)  # type: ignore[arg-type]
            for name, (_, vocabulary, scope) in columns.items()
        ),
        Feature("genres", "multi_hot", "list<int32>", "item", len(genre_ids) + NUM_RESERVED_IDS),
    )
    return of_users, of_films, features


def _vocabulary(values: Sequence[str] | pd.Series, min_count: int = 1) -> dict[str, int]:
    """Returns the ids of the values that occur at least `min_count` times."""
    counts = pd.Series(values).value_counts()
    return {
        value: NUM_RESERVED_IDS + place
        for place, value in enumerate(sorted(counts[counts >= min_count].index))
    }


def _encoded(values: pd.Series, vocabulary: dict[str, int]) -> pd.Series:
    return values.map(vocabulary).fillna(OOV_ID).astype(np.int32)
