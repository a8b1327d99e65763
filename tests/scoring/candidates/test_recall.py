"""Recall of candidates against pandas, by source, for lists and for all items but some."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from scoring.candidates.recall import Recall, measure_recall
from tests.rows import BOTH_FORMS, AsRows

USERS = [f"u{index}" for index in range(20)]
ITEMS = [f"i{index}" for index in range(12)]
SCHEMA = "user_key string, candidates array<int>, excluded array<int>, sources array<tinyint>"
SOURCES = ["covisitation", "popular", "retrieval"]


def draw_positives(draw: np.random.Generator) -> dict[str, set[str]]:
    """Up to four positives a user, or none; some items are unknown, and one user has no candidates."""
    actual = {
        user: {str(key) for key in draw.choice([*ITEMS, "gone"], draw.integers(0, 5), replace=False)}
        for user in [*USERS, "stranger"]
    }
    return {user: wanted for user, wanted in actual.items() if wanted}


def measured(
    spark: SparkSession,
    rows: list[tuple[Any, ...]],
    positives: dict[str, set[str]],
    sources: list[str],
    as_rows: AsRows,
) -> dict[bool, Recall]:
    """The recall of some lists."""
    items = spark.createDataFrame(list(enumerate(ITEMS)), "item_index int, item_key string")
    clicks = [(user, item) for user, wanted in positives.items() for item in wanted]
    wanted = spark.createDataFrame(clicks, "user_key string, item_key string")
    warm = spark.createDataFrame([(user,) for user in USERS[:14]], "user_key string")
    candidates = spark.createDataFrame(rows, SCHEMA)
    return measure_recall(*map(as_rows, (candidates, items, wanted, warm)), sources)


@BOTH_FORMS
@pytest.mark.parametrize("seed", [1, 2])
def test_recall_of_lists_is_the_mean_share_of_positives_and_adds_up_over_sources(
    spark: SparkSession, seed: int, as_rows: AsRows
) -> None:
    draw = np.random.default_rng(seed)
    positives = draw_positives(draw)
    lists: dict[str, list[tuple[int, int]]] = {}
    for user in USERS:
        chosen = draw.permutation(12)[: draw.integers(0, 9)].tolist()
        lists[user] = list(zip(chosen, sorted(draw.integers(0, 3, len(chosen)).tolist()), strict=True))
    rows = [
        (user, [i for i, _ in user_rows], None, [s for _, s in user_rows])
        for user, user_rows in lists.items()
    ]
    actual = measured(spark, rows, positives, SOURCES, as_rows)
    for group, users in ((True, USERS[:14]), (False, USERS[14:])):
        asked = [user for user in users if user in positives]
        shares: dict[str, list[float]] = {name: [] for name in SOURCES}
        for user in asked:
            for number, name in enumerate(SOURCES):
                hits = [i for i, source in lists[user] if source == number and ITEMS[i] in positives[user]]
                shares[name].append(len(hits) / len(positives[user]))
        recall = actual[group]
        assert recall.users == len(asked) > 2
        assert recall.positives == sum(len(positives[user]) for user in asked)
        assert recall.by_source == pytest.approx(
            {name: np.mean(share) for name, share in shares.items()}, abs=1e-9
        )
        assert recall.recall == pytest.approx(sum(recall.by_source.values()), abs=1e-9)
        assert 0 < (recall.recall or 0) < 1
        assert recall.mean_candidates == pytest.approx(np.mean([len(lists[user]) for user in asked]))


@BOTH_FORMS
def test_of_all_items_only_what_is_excluded_or_unknown_is_missed(
    spark: SparkSession, as_rows: AsRows
) -> None:
    draw = np.random.default_rng(3)
    positives = draw_positives(draw)
    excluded = {user: sorted(draw.permutation(12)[: draw.integers(0, 6)].tolist()) for user in USERS}
    rows = [(user, None, excluded[user] or None, None) for user in USERS]
    actual = measured(spark, rows, positives, ["all_items"], as_rows)[True]
    asked = [user for user in USERS[:14] if user in positives]
    shares = [
        len({key for key in positives[user] if key in ITEMS and ITEMS.index(key) not in excluded[user]})
        / len(positives[user])
        for user in asked
    ]
    assert actual.recall == pytest.approx(np.mean(shares), abs=1e-9)
    assert actual.by_source == {}
    assert actual.mean_candidates == pytest.approx(np.mean([12 - len(excluded[user]) for user in asked]))


@BOTH_FORMS
def test_without_a_user_to_ask_recall_is_unknown(spark: SparkSession, as_rows: AsRows) -> None:
    rows = [(user, [1], None, [0]) for user in USERS]
    assert measured(spark, rows, {"stranger": {"i1"}}, ["popular"], as_rows) == {
        group: Recall(0, 0, None) for group in (True, False)
    }
