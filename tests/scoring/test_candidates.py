"""Retrieval against pandas: popularity with ties, clicks excluded user by user."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession

from conf.types import Candidates
from scoring.candidates import clicked_items, make_candidates, number_items, popularity

USERS = [f"u{index:02d}" for index in range(12)]
ITEMS = [f"i{index:02d}" for index in range(15)]


@pytest.fixture(scope="module")
def log() -> pd.DataFrame:
    """Few clicks on many items, so that counts tie; u00 clicked almost everything, u11 nothing; one item is unknown."""
    draw = np.random.default_rng(4)
    rows = pd.DataFrame(
        {
            "user_key": draw.choice(USERS[1:11], 120),
            "item_key": draw.choice([*ITEMS[:11], "gone"], 120),
            "label": (draw.random(120) < 0.4).astype(np.float32),
        }
    )
    greedy = pd.DataFrame({"user_key": "u00", "item_key": ITEMS[:13], "label": np.float32(1)})
    return pd.concat([rows, greedy, greedy[:3]], ignore_index=True)


@pytest.fixture(scope="module")
def tables(spark: SparkSession, log: pd.DataFrame) -> tuple[DataFrame, DataFrame, DataFrame]:
    """(users, numbered items, log) in Spark; items arrive unsorted."""
    users = spark.createDataFrame([(key,) for key in USERS], "user_key string")
    items = number_items(
        spark.createDataFrame([(key, 1.0) for key in ITEMS[::-1]], "item_key string, price float")
    )
    return users, items.persist(), spark.createDataFrame(log, "user_key string, item_key string, label float")


def clicked_by(log: pd.DataFrame, user: str) -> set[int]:
    clicks = log[(log.label == 1) & (log.user_key == user)]
    return {ITEMS.index(key) for key in clicks.item_key if key in ITEMS}


def ranking(log: pd.DataFrame) -> list[int]:
    counts = log[log.label == 1].item_key.value_counts()
    return sorted(range(len(ITEMS)), key=lambda index: (-counts.get(ITEMS[index], 0), index))


def test_items_are_numbered_in_the_order_of_their_key(tables: tuple[DataFrame, DataFrame, DataFrame]) -> None:
    found = {row.item_key: row.item_index for row in tables[1].collect()}
    assert found == {key: index for index, key in enumerate(ITEMS)}
    assert tables[1].columns == ["item_index", "item_key", "price"]


def test_popularity_counts_clicks_and_keeps_items_without_any(
    tables: tuple[DataFrame, DataFrame, DataFrame], log: pd.DataFrame
) -> None:
    found = {row.item_index: row.clicks for row in popularity(tables[2], tables[1]).collect()}
    counts = log[log.label == 1].item_key.value_counts()
    assert found == {index: counts.get(key, 0) for index, key in enumerate(ITEMS)}


@pytest.mark.parametrize("n", [1, 4, 15, 40])
@pytest.mark.parametrize("exclude", [False, True])
def test_popular_lists_equal_pandas(
    tables: tuple[DataFrame, DataFrame, DataFrame], log: pd.DataFrame, n: int, exclude: bool
) -> None:
    users, items, rows = tables
    clicked = clicked_items(rows, items) if exclude else None
    made = make_candidates(Candidates(strategy="popular", n=n), users, items, rows, clicked).collect()
    order = ranking(log)
    assert sorted(row.user_key for row in made) == USERS
    for row in made:
        gone = clicked_by(log, row.user_key) if exclude else set()
        assert row.candidates == [index for index in order if index not in gone][:n]
        assert row.excluded is None


def test_all_items_is_null_minus_what_was_clicked(
    tables: tuple[DataFrame, DataFrame, DataFrame], log: pd.DataFrame
) -> None:
    users, items, rows = tables
    made = make_candidates(Candidates(), users, items, rows, clicked_items(rows, items)).collect()
    assert {row.user_key: row.excluded for row in made} == {
        user: sorted(clicked_by(log, user)) or None for user in USERS
    }
    assert all(row.candidates is None for row in made)
    unrestricted = make_candidates(Candidates(), users, items, rows, None).collect()
    assert all(row.candidates is None and row.excluded is None for row in unrestricted)
