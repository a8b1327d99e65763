"""Hit rate, NDCG and counts of items, of all kinds of lists at once, against plain Python."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from scoring.evaluation.list_facts import (
    BEST,
    CLICK_PROBABILITY,
    PUBLISHED,
    cold_start_facts,
    relevance_facts,
    shown_kinds,
    truth_facts,
)
from scoring.evaluation.measured_lists import (
    CLICKS,
    ITEMS,
    NO_LISTS,
    ListedItems,
    MeasuredLists,
    Relevance,
    count_items,
    measure_kinds,
)
from storage.manifest import Manifest
from tests.rows import BOTH_FORMS, AsRows, as_frame, as_table

K = 4
KINDS = (PUBLISHED, "popular", BEST)
Lists = dict[str, dict[str, list[str]]]  # kind -> user -> items in order
Clicks = dict[str, set[str]]


def ndcg(listed: list[str], wanted: set[str]) -> float:
    gain = sum(1 / math.log2(place + 1) for place, item in enumerate(listed, 1) if item in wanted)
    return gain / sum(1 / math.log2(place + 1) for place in range(1, min(K, len(wanted)) + 1))


def relevance(lists: dict[str, list[str]], wanted: Clicks) -> Relevance:
    """Returns the relevance of the users who have both a list and a positive."""
    users = sorted(user for user in lists if wanted.get(user))
    if not users:
        return Relevance(0, None, None)
    hits = [bool(set(lists[user]) & wanted[user]) for user in users]
    return Relevance(
        len(users), float(np.mean(hits)), float(np.mean([ndcg(lists[user], wanted[user]) for user in users]))
    )


class World:
    """Random lists of three kinds, clicks, warm users, and users and items of which some are new."""

    def __init__(self, seed: int, users: int) -> None:
        draw = np.random.default_rng(seed)
        names = [f"u{index}" for index in range(users)]
        self.items = {f"i{index}": bool(draw.random() < 0.3) for index in range(9)}
        self.users = {user: bool(draw.random() < 0.4) for user in names if draw.random() < 0.8}
        self.warm = {user for user in names if draw.random() < 0.6} | {"never seen again"}
        self.lists: Lists = {kind: {} for kind in KINDS}
        for kind in KINDS:
            for user in names:
                if draw.random() < 0.7:
                    length = int(draw.integers(1, K + 1))
                    self.lists[kind][user] = draw.choice([*self.items], length, replace=False).tolist()
        catalogue = [*self.items, "later"]  # an item that was not in the table of items
        self.wanted: Clicks = {
            user: set(draw.choice(catalogue, int(draw.integers(1, 7)), replace=False).tolist())
            for user in [*names, "without a list"]
            if draw.random() < 0.7
        }

    def frames(self, spark: SparkSession) -> tuple[DataFrame, DataFrame, DataFrame, DataFrame, DataFrame]:
        """Returns the arguments of `measure_kinds` in their order, except k."""
        entries = [
            (kind, user, place, item)
            for kind, of_users in self.lists.items()
            for user, listed in of_users.items()
            for place, item in enumerate(listed, 1)
        ]
        clicks = [(user, item) for user, wanted in self.wanted.items() for item in sorted(wanted)]
        columns = "kind string, user_key string, position int, item_key string"
        return (
            spark.createDataFrame(entries, columns).repartition(3),
            spark.createDataFrame(clicks, "user_key string, item_key string"),
            spark.createDataFrame([(user,) for user in sorted(self.warm)], "user_key string"),
            spark.createDataFrame([*self.users.items()], "user_key string, new boolean"),
            spark.createDataFrame([*self.items.items()], "item_key string, new boolean"),
        )

    def expected(self, kind: str) -> MeasuredLists:
        """Returns the figures of one kind, by plain Python."""

        def of(chosen: set[str], wanted: Clicks) -> Relevance:
            return relevance({user: row for user, row in self.lists[kind].items() if user in chosen}, wanted)

        new_items = {item for item, new in self.items.items() if new}
        on_new = {user: wanted & new_items for user, wanted in self.wanted.items()}
        everyone = {*self.lists[kind]}
        return MeasuredLists(
            warm=of(self.warm, self.wanted),
            cold=of(everyone - self.warm, self.wanted),
            new_users=of({user for user, new in self.users.items() if new}, self.wanted),
            known_users=of({user for user, new in self.users.items() if not new}, self.wanted),
            new_items=of({*self.users}, on_new),
        )


def assert_same(actual: MeasuredLists, expected: MeasuredLists) -> None:
    for group in ("warm", "cold", "new_users", "known_users", "new_items"):
        found, wanted = getattr(actual, group), getattr(expected, group)
        assert found.users == wanted.users
        assert found.hit_rate == pytest.approx(wanted.hit_rate, abs=1e-9)
        assert found.ndcg == pytest.approx(wanted.ndcg, abs=1e-9)


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_figures_equal_plain_python(spark: SparkSession, seed: int, users: int) -> None:
    world = World(seed, users)
    frames = world.frames(spark)
    if not world.wanted or not any(world.lists.values()):
        return
    for form in (as_frame, as_table):
        lists, clicks, warm, of_users, items = map(form, frames)
        actual = measure_kinds(lists, clicks, warm, of_users, items, K)
        assert_expected(world, actual, count_items(lists, clicks, items))


def assert_expected(world: World, actual: dict[str, MeasuredLists], counts: dict[str, ListedItems]) -> None:
    """Compares the figures of all kinds of lists with those of plain Python."""
    for kind in KINDS:
        assert_same(actual.get(kind, NO_LISTS), world.expected(kind))
        entries = [item for listed in world.lists[kind].values() for item in listed]
        if entries:
            new = sum(world.items[item] for item in entries)
            assert counts[kind] == ListedItems(len({*entries}), new, new / len(entries))
    clicked = [item for wanted in world.wanted.values() for item in wanted]
    known = [item for item in clicked if item in world.items]
    new = sum(world.items[item] for item in known)
    assert counts[CLICKS] == ListedItems(len({*clicked}), new, new / len(known) if known else None)
    assert counts[ITEMS].distinct == 9
    assert counts[ITEMS].new == sum(world.items.values())


@BOTH_FORMS
def test_every_group_has_users(spark: SparkSession, as_rows: AsRows) -> None:
    """One large example, in which no group is empty and no rate is 0 or 1."""
    world = World(4, 120)
    lists, clicks, warm, of_users, items = map(as_rows, world.frames(spark))
    actual = measure_kinds(lists, clicks, warm, of_users, items, K)
    for kind in KINDS:
        assert_same(actual[kind], world.expected(kind))
        for group in ("warm", "cold", "new_users", "known_users", "new_items"):
            figures = getattr(actual[kind], group)
            assert figures.users > 2
            assert 0 < figures.hit_rate < 1


def test_groups_without_users_have_no_rates(spark: SparkSession) -> None:
    columns = "kind string, user_key string, position int, item_key string"
    lists = spark.createDataFrame([(PUBLISHED, "a", 1, "x")], columns)
    clicks = spark.createDataFrame([("a", "x")], "user_key string, item_key string")
    warm = spark.createDataFrame([("a",)], "user_key string")
    users = spark.createDataFrame([("a", False)], "user_key string, new boolean")
    items = spark.createDataFrame([("x", False)], "item_key string, new boolean")
    measured = measure_kinds(lists, clicks, warm, users, items, K)
    nobody, found = Relevance(0, None, None), Relevance(1, 1.0, 1.0)
    assert measured == {PUBLISHED: MeasuredLists(found, nobody, nobody, found, nobody)}
    counts = count_items(lists, clicks, items)
    facts = cold_start_facts(shown_kinds(measured, counts), counts, PUBLISHED)
    nothing: dict[str, Any] = {"hit_rate": None, "ndcg": None}
    assert facts["known_users"] == {
        "users": 1,
        "lists": {"hit_rate": 1.0, "ndcg": 1.0},
        "popular": nothing,
    }
    assert facts["new_users"] == {"users": 0, "lists": nothing, "popular": nothing}
    assert facts["new_items"] == {
        "users": 0,
        "lists": nothing,
        "popular": nothing,
        "items": 0,
        "position_share": 0.0,
        "click_share": 0.0,
    }


def test_facts_name_the_figures_of_each_kind() -> None:
    def lists(hit_rate: float) -> MeasuredLists:
        of_users = [Relevance(10 + n, hit_rate + n / 128, hit_rate / 2) for n in range(5)]
        return MeasuredLists(*of_users)

    measured = {
        PUBLISHED: lists(0.5),
        "popular": lists(0.125),
        BEST: lists(0.75),
        CLICK_PROBABILITY: lists(0.25),
    }
    counts = {kind: ListedItems(n, 2, 0.25) for n, kind in enumerate(measured, 1)}
    counts |= {CLICKS: ListedItems(7, 3, 0.5), ITEMS: ListedItems(8, 5, 0.625)}
    published = Manifest(
        "recommendations", "2026-01-01", (), (), {}, facts={"k": K, "items": 8, "coverage": 0.9}
    )
    facts = relevance_facts(published, measured, counts)
    assert facts == {
        "k": K,
        "users": 10,
        "hit_rate": 0.5,
        "ndcg": 0.25,
        "coverage": 0.9,
        "popular": {"hit_rate": 0.125, "ndcg": 0.0625, "coverage": 2 / 8},
        "lift": 4.0,
        "cold_users": {"users": 11, "hit_rate": 0.5 + 1 / 128, "ndcg": 0.25},
    }
    truth = truth_facts(published, measured, counts)
    assert truth == {
        CLICK_PROBABILITY: {"hit_rate": 0.25, "ndcg": 0.125, "coverage": 4 / 8},
        BEST: {"hit_rate": 0.75, "ndcg": 0.375, "coverage": 3 / 8},
        "share_of_best": 0.5 / 0.75,
    }
    assert truth_facts(published, measured, {PUBLISHED: counts[PUBLISHED]}) is None
    cold = cold_start_facts(shown_kinds(measured, counts), counts, PUBLISHED)
    assert cold["new_items"] == {
        "users": 14,
        "lists": {"hit_rate": 0.5 + 4 / 128, "ndcg": 0.25},
        "popular": {"hit_rate": 0.125 + 4 / 128, "ndcg": 0.0625},
        "best": {"hit_rate": 0.75 + 4 / 128, "ndcg": 0.375},
        "items": 5,
        "position_share": 0.25,
        "click_share": 0.5,
    }
