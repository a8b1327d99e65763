"""Candidates against pandas: popularity, segments, co-visitation, exclusions, quotas, active items."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.errors import DataError
from conf.types import Candidates
from scoring.candidates.build import make_candidates
from scoring.candidates.candidate_items import available_items, number_items
from scoring.candidates.candidate_tables import sold_out
from scoring.candidates.clicks import clicked_items, last_days, observed_items, within
from scoring.candidates.exclusions import AttributeFilter, Exclusions, exclude
from scoring.candidates.lists_in_spark import VectorStore
from scoring.candidates.popular import allowed, popular_items, popularity
from scoring.candidates.similar_items import latest_items, similarities
from scoring.candidates.source_tables import SourceTables
from scoring.candidates.sources.covisitation import Settings as Covisitation
from scoring.candidates.sources.covisitation import with_weights
from scoring.candidates.unite_sources import unite
from spark.rows import Rows, count, records
from tests.rows import BOTH_FORMS, AsRows, as_frame, as_table, columns_of

USERS = [f"u{index:02d}" for index in range(12)]
ITEMS = [f"i{index:02d}" for index in range(15)]
DAYS = [f"2026-01-0{day}" for day in range(1, 7)]
RUN_DATE = DAYS[-1]
ROWS = "user_key string, item_key string, label float, features_dt string"
SEGMENTS = {user: None if index % 5 == 4 else "abc"[index % 3] for index, user in enumerate(USERS)}

Frames = tuple[DataFrame, DataFrame, DataFrame]


@pytest.fixture(scope="module")
def log() -> pd.DataFrame:
    """Few clicks on many items, so that counts tie. u00 clicked almost all, u11 none; one item is unknown."""
    draw = np.random.default_rng(4)
    rows = pd.DataFrame(
        {
            "user_key": draw.choice(USERS[1:11], 120),
            "item_key": draw.choice([*ITEMS[:11], "gone"], 120),
            "label": (draw.random(120) < 0.4).astype(np.float32),
            "features_dt": draw.choice(DAYS, 120),
        }
    )
    greedy = pd.DataFrame(
        {"user_key": "u00", "item_key": ITEMS[:13], "label": np.float32(1), "features_dt": DAYS[2]}
    )
    return pd.concat([rows, greedy, greedy[:3]], ignore_index=True)


@pytest.fixture(scope="module")
def tables(spark: SparkSession, log: pd.DataFrame) -> Frames:
    """(users, numbered items, log) in Spark; items arrive unsorted."""
    users = spark.createDataFrame([(key,) for key in USERS], "user_key string")
    items = number_items(
        spark.createDataFrame([(key, 1.0) for key in ITEMS[::-1]], "item_key string, price float")
    )
    return users, items.persist(), spark.createDataFrame(log, ROWS)


def excluding(tables: tuple[Any, Any, Any], clicked: bool) -> Exclusions:
    """Exclusions of all users, with clicked items or without."""
    users, items, rows = tables
    return exclude(users, items, clicked_items(rows, items) if clicked else None, [])


@BOTH_FORMS
def test_the_last_days_with_a_row_and_with_a_click_are_local_days(
    spark: SparkSession, as_rows: AsRows
) -> None:
    """A row of the next day in Tokyo, two hours after the last click, and one after the run date."""
    times = [("2026-01-05T14:00:00+00:00", 1.0), ("2026-01-05T16:00:00+00:00", 0.0)]
    times.append(("2026-01-09T00:00:00+00:00", 1.0))
    rows = [(int(datetime.fromisoformat(time).timestamp()) * 1_000_000, label) for time, label in times]
    log = as_rows(spark.createDataFrame(rows, "event_time long, label float"))
    assert last_days(log, "2026-01-08", "Asia/Tokyo") == ("2026-01-06", "2026-01-05")
    assert last_days(log, "2026-01-08", "UTC") == ("2026-01-05", "2026-01-05")
    assert last_days(log, "2026-01-09", "UTC") == ("2026-01-09", "2026-01-09")
    assert last_days(log, "2026-01-04", "UTC") == (None, None)


def lists_of(
    source: dict[str, Any],
    tables: tuple[Any, Any, Any],
    clicked: bool,
    segments: Rows | None = None,
    store: VectorStore | None = None,
) -> dict[str, list[int]]:
    """User → the candidates of one source."""
    excluded, (_, items, rows) = excluding(tables, clicked), tables
    of_users = {} if segments is None else {"segment": segments}
    candidates = make_candidates(
        Candidates.model_validate({"sources": [source]}),
        SourceTables(excluded, items, rows, RUN_DATE, of_users, store=store),
    )
    actual = {row["user_key"]: row["candidates"] for row in records(candidates)}
    assert sorted(actual) == USERS
    return actual


def segments_of(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(list(SEGMENTS.items()), "user_key string, segment string")


def clicked_by(log: pd.DataFrame, user: str) -> set[int]:
    """Indices of the items that a user clicked."""
    clicks = log[(log.label == 1) & (log.user_key == user)]
    return {ITEMS.index(key) for key in clicks.item_key if key in ITEMS}


def ranking(log: pd.DataFrame) -> list[int]:
    """Item indices by popularity."""
    counts = log[log.label == 1].item_key.value_counts()
    return sorted(range(len(ITEMS)), key=lambda index: (-counts.get(ITEMS[index], 0), index))


def test_items_are_numbered_in_the_order_of_their_key(tables: Frames) -> None:
    actual = {row.item_key: row.item_index for row in tables[1].collect()}
    assert actual == {key: index for index, key in enumerate(ITEMS)}
    assert tables[1].columns == ["item_index", "item_key", "price"]


@BOTH_FORMS
def test_popularity_counts_clicks_and_keeps_items_without_any(
    tables: Frames, log: pd.DataFrame, as_rows: AsRows
) -> None:
    counted = popularity(as_rows(tables[2]), as_rows(tables[1]))
    actual = {row["item_index"]: row["clicks"] for row in records(counted)}
    counts = log[log.label == 1].item_key.value_counts()
    assert actual == {index: counts.get(key, 0) for index, key in enumerate(ITEMS)}


@BOTH_FORMS
@pytest.mark.parametrize("days", [None, 2])
@pytest.mark.parametrize("n", [1, 4, 40])
@pytest.mark.parametrize("clicked", [False, True])
def test_popular_lists_equal_pandas(
    tables: Frames, log: pd.DataFrame, n: int, clicked: bool, days: int | None, as_rows: AsRows
) -> None:
    users, items, rows = map(as_rows, tables)
    source = {"source": "popular", "n": n, "window_days": days}
    config = Candidates.model_validate({"sources": [source]})
    excluded = excluding((users, items, rows), clicked)
    candidate_rows = records(make_candidates(config, SourceTables(excluded, items, rows, RUN_DATE)))
    order = ranking(log if days is None else log[log.features_dt >= DAYS[-2]])
    assert sorted(row["user_key"] for row in candidate_rows) == USERS
    for row in candidate_rows:
        gone = clicked_by(log, row["user_key"]) if clicked else set()
        assert row["candidates"] == [index for index in order if index not in gone][:n]
        assert row["sources"] == [0] * len(row["candidates"])
        assert row["excluded"] is None


@pytest.mark.parametrize("n", [1, 4, 40])
@pytest.mark.parametrize("clicked", [False, True])
def test_popular_lists_of_frames_and_tables_are_equal(tables: Frames, n: int, clicked: bool) -> None:
    users, items, rows = tables
    lists = []
    for form in (as_frame, as_table):
        numbered, log_rows = form(items), form(rows)
        known = clicked_items(log_rows, numbered) if clicked else None
        excluded = exclude(form(users), numbered, known, [])
        popular = popular_items(excluded, popularity(log_rows, numbered), n)
        lists.append(sorted((tuple(row.values()) for row in records(popular)), key=str))
        assert columns_of(popular) == ["user_key", "candidates", "scores"]
    assert lists[0] == lists[1]
    assert len(lists[0]) == len(USERS)


def test_only_the_first_items_are_compared_with_the_excluded_ones(spark: SparkSession) -> None:
    """For a user with x excluded items, the first n + x of a ranking, which may be long because of other users."""
    excluded = [[3, 0, 1, 2], [1], [1, 1, 9], [], None, list(range(10))]
    users = spark.createDataFrame(
        list(zip("abcdef", excluded, strict=True)), "user string, excluded array<int>"
    )
    ranking = F.array(*map(F.lit, range(10)))
    lists = users.select("user", allowed(ranking, 2).alias("items"))
    expected = {"a": [4, 5], "b": [0, 2], "c": [0, 2], "d": [0, 1], "e": [0, 1], "f": []}
    assert {row["user"]: row["items"] for row in lists.collect()} == expected
    assert "array_except(slice(" in lists._jdf.queryExecution().analyzed().toString()


@BOTH_FORMS
@pytest.mark.parametrize("n", [1, 3, 40])
def test_popular_items_of_a_segment_are_those_its_users_clicked(
    spark: SparkSession, tables: Frames, log: pd.DataFrame, n: int, as_rows: AsRows
) -> None:
    users, items, rows = map(as_rows, tables)
    source = {"source": "popular", "segment": "segment", "n": n}
    actual = lists_of(source, (users, items, rows), True, as_rows(segments_of(spark)))
    clicks = log[(log.label == 1) & log.item_key.isin(ITEMS)].assign(segment=log.user_key.map(SEGMENTS))
    for user in USERS:
        counts = clicks[clicks.segment == SEGMENTS[user]].item_key.value_counts()
        order = sorted((ITEMS.index(key) for key in counts.index), key=lambda i: (-counts[ITEMS[i]], i))
        assert actual[user] == [index for index in order if index not in clicked_by(log, user)][:n]


def covisited(
    log: pd.DataFrame, config: Covisitation
) -> tuple[dict[str, dict[int, int]], dict[tuple[int, int], int]]:
    """(scores of every user's items, similarities) by loops over users and pairs, in the documented units."""
    clicks = log[(log.label == 1) & log.item_key.isin(ITEMS)]
    latest = clicks.groupby(["user_key", "item_key"]).features_dt.max().reset_index()
    latest["item"] = latest.item_key.map(ITEMS.index)
    histories: dict[str, list[int]] = {}
    for user, rows in latest.groupby("user_key"):
        ordered = rows.sort_values(["features_dt", "item"], ascending=[False, True])
        histories[str(user)] = ordered["item"].tolist()[: config.clicks_per_user]
    norm: dict[int, int] = defaultdict(int)
    shared: dict[tuple[int, int], int] = defaultdict(int)
    for items in histories.values():
        weight = 2**24 // len(items)
        for item in items:
            norm[item] += weight
        for pair in itertools.permutations(items, 2):
            shared[pair] += weight
    similar = {
        (a, b): int(np.floor(weight / (np.sqrt(float(norm[a])) * np.sqrt(float(norm[b]))) * 2**30 + 0.5))
        for (a, b), weight in shared.items()
    }
    near: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for (a, b), value in similar.items():
        near[a].append((-value, b))
    scores: dict[str, dict[int, int]] = {}
    for user, items in histories.items():
        scores[user] = defaultdict(int)
        for item in items:
            for value, other in sorted(near[item])[: config.neighbours]:
                scores[user][other] -= value
    return scores, similar


@BOTH_FORMS
@pytest.mark.parametrize("n, neighbours, clicks", [(3, 2, 50), (40, 100, 2), (1, 1, 1)])
@pytest.mark.parametrize("clicked", [False, True])
def test_covisited_lists_equal_loops_over_pairs(
    tables: Frames,
    log: pd.DataFrame,
    store: VectorStore,
    n: int,
    neighbours: int,
    clicks: int,
    clicked: bool,
    as_rows: AsRows,
) -> None:
    config = Covisitation(source="covisitation", n=n, neighbours=neighbours, clicks_per_user=clicks)
    users, items, rows = map(as_rows, tables)
    actual = lists_of(config.model_dump(), (users, items, rows), clicked, store=store)
    scores, _ = covisited(log, config)
    for user in USERS:
        user_rows = scores.get(user, {})
        gone = clicked_by(log, user) if clicked else set()
        order = sorted(
            (item for item in user_rows if item not in gone), key=lambda item: (-user_rows[item], item)
        )
        assert actual[user] == order[:n]
    assert (clicks == 1) == (not any(actual.values()))


def test_similarity_is_the_cosine_of_columns_whose_rows_have_unit_length(
    tables: Frames, log: pd.DataFrame
) -> None:
    actual = {
        (row.item_index, row.other): row.similarity / 2**30
        for row in similarities(with_weights(latest_items(tables[2], tables[1], 50))).collect()
    }
    clicks = log[(log.label == 1) & log.item_key.isin(ITEMS)]
    matrix = (pd.crosstab(clicks.user_key, clicks.item_key) > 0).reindex(columns=ITEMS, fill_value=False)
    unit = matrix.to_numpy(float) / np.sqrt(matrix.sum(axis=1).to_numpy(float))[:, None]
    lengths = np.linalg.norm(unit, axis=0)
    cosine = (unit.T @ unit) / np.outer(lengths, lengths).clip(1e-12)
    expected = {(a, b): cosine[a, b] for a in range(15) for b in range(15) if a != b and cosine[a, b] > 0}
    assert actual.keys() == expected.keys()
    for pair, value in expected.items():
        assert actual[pair] == pytest.approx(value, abs=1e-6)


def test_an_active_user_makes_no_more_pairs_than_the_cap_allows(spark: SparkSession, tables: Frames) -> None:
    rows = [("busy", f"i{index % 15:02d}", 1.0, DAYS[index % 6]) for index in range(3_000)]
    history = latest_items(spark.createDataFrame(rows, ROWS), tables[1], 4)
    assert history.count() == 4
    assert similarities(with_weights(history)).count() == 4 * 3


@BOTH_FORMS
def test_sources_are_united_in_order_each_with_its_share(
    spark: SparkSession, tables: Frames, as_rows: AsRows
) -> None:
    draw = np.random.default_rng(8)
    lists_by_source: list[dict[str, list[int]]] = [
        {
            user: draw.permutation(15)[: draw.integers(0, 6)].tolist()
            for user in USERS[:-1]
            if draw.random() < 0.8
        }
        for _ in range(3)
    ]
    frames = [
        as_rows(
            spark.createDataFrame(
                [(user, listed, [0.5] * len(listed)) for user, listed in candidates.items()],
                "user_key string, candidates array<int>, scores array<float>",
            )
        )
        for candidates in lists_by_source
    ]
    for most in (None, 7, 1):
        united = unite(as_rows(tables[0]), frames, most)
        candidate_rows = {row["user_key"]: row for row in records(united)}
        assert sorted(candidate_rows) == USERS
        for user in USERS:
            places: dict[int, int] = {}
            for number, candidates in enumerate(lists_by_source):
                for item in candidates.get(user, []):
                    places.setdefault(item, number)
            assert candidate_rows[user]["candidates"] == list(places)[:most]
            assert candidate_rows[user]["sources"] == list(places.values())[:most]
            assert candidate_rows[user]["excluded"] is None
    assert candidate_rows["u11"]["candidates"] == candidate_rows["u11"]["sources"] == []


@BOTH_FORMS
def test_users_without_clicks_fall_back_to_what_is_popular(
    tables: Frames, log: pd.DataFrame, store: VectorStore, as_rows: AsRows
) -> None:
    users, items, clicks = map(as_rows, tables)
    excluded = exclude(users, items, clicked_items(clicks, items), [])
    config = Candidates.model_validate(
        {"sources": [{"source": "covisitation", "n": 4}, {"source": "popular", "n": 6}], "max": 8}
    )
    candidate_rows = make_candidates(config, SourceTables(excluded, items, clicks, RUN_DATE, store=store))
    rows = {row["user_key"]: row for row in records(candidate_rows)}
    assert rows["u11"]["candidates"] == ranking(log)[:6]
    assert rows["u11"]["sources"] == [1] * 6
    assert rows["u00"]["candidates"] == [13, 14]  # all but these were clicked
    assert {0, 1} <= {source for row in rows.values() for source in row["sources"]}
    assert max(len(row["candidates"]) for row in rows.values()) == 8


def test_all_items_is_null_minus_what_was_clicked(tables: Frames, log: pd.DataFrame) -> None:
    candidate_rows = make_candidates(
        Candidates(), SourceTables(excluding(tables, True), tables[1], tables[2], RUN_DATE)
    ).collect()
    assert {row.user_key: row.excluded for row in candidate_rows} == {
        user: sorted(clicked_by(log, user)) or None for user in USERS
    }
    assert all(row.candidates is None and row.sources is None for row in candidate_rows)
    free = make_candidates(
        Candidates(), SourceTables(excluding(tables, False), tables[1], tables[2], RUN_DATE)
    )
    assert all(row.candidates is None and row.excluded is None for row in free.collect())


AGES = {user: None if index == 3 else float(10 + 4 * index) for index, user in enumerate(USERS[:10])}
BARRED: dict[str, tuple[list[tuple[str, Any]], str, Callable[[Any, list[Any]], bool]]] = {
    "deny": (
        [("i01", "a"), ("i02", "a"), ("i02", "b"), ("gone", "a")],
        "country",
        lambda user_rows, message: user_rows in message,
    ),
    "allow": (
        [("i05", "a"), ("i06", "b"), ("i06", "c")],
        "country",
        lambda user_rows, message: user_rows not in message,
    ),
    "at_least": (
        [("i08", 18.0), ("i09", 30.0)],
        "age",
        lambda user_rows, message: user_rows is None or user_rows < message[0],
    ),
}


@pytest.mark.parametrize("kinds", [["deny"], ["allow"], ["at_least"], ["deny", "allow", "at_least"]], ids=str)
@pytest.mark.parametrize("clicked", [False, True])
@BOTH_FORMS
def test_items_not_allowed_for_a_user_are_excluded_and_counted(
    spark: SparkSession, tables: Frames, log: pd.DataFrame, kinds: list[str], clicked: bool, as_rows: AsRows
) -> None:
    users, items, rows = map(as_rows, tables)
    known = [(user, SEGMENTS[user], AGES[user]) for user in USERS[:10]]  # the last two users have no row
    attributes = spark.createDataFrame(known, "user_key string, country string, age double")
    rules, types = [], {"deny": "string", "allow": "string", "at_least": "double"}
    for kind in kinds:
        frame = spark.createDataFrame(BARRED[kind][0], f"item_key string, value {types[kind]}")
        rule = AttributeFilter(f"not_allowed by {kind}", kind, as_rows(frame), BARRED[kind][1])  # type: ignore[arg-type]
        rules.append(rule)
    known_pairs = clicked_items(rows, items) if clicked else None
    actual = exclude(users, items, known_pairs, rules, as_rows(attributes))
    expected: dict[str, set[int]] = {user: clicked_by(log, user) if clicked else set() for user in USERS}
    counts = {"clicked": sum(map(len, expected.values()))} if clicked else {}
    for kind in kinds:
        message, attribute, bars = BARRED[kind]
        by_item: dict[str, list[Any]] = defaultdict(list)
        for item, value in message:
            by_item[item].append(value)
        counts[f"not_allowed by {kind}"] = 0
        for user in USERS:
            user_rows = (
                AGES.get(user) if attribute == "age" else SEGMENTS[user] if user in USERS[:10] else None
            )
            gone = {
                ITEMS.index(item)
                for item, values in by_item.items()
                if item in ITEMS and bars(user_rows, values)
            }
            counts[f"not_allowed by {kind}"] += len(gone)
            expected[user] |= gone
    lists = {row["user_key"]: row["excluded"] for row in records(actual.users)}
    assert lists == {user: sorted(gone) or None for user, gone in expected.items()}
    assert actual.counts == counts
    assert actual.most == max(map(len, expected.values()))


@BOTH_FORMS
def test_items_are_sold_out_by_number_flag_or_text(spark: SparkSession, as_rows: AsRows) -> None:
    rows = [
        ("a", 0, 0, "sold out"),
        ("b", 2, 1, "in stock"),
        ("c", -1, None, "gone"),
        ("d", None, 1, None),
    ]
    table = as_rows(spark.createDataFrame(rows, "item string, n int, flag int, word string"))
    expected = {"n": ({"a", "c"}, []), "flag": ({"a"}, []), "word": ({"a", "c"}, ["sold out", "gone"])}
    for column, (items, texts) in expected.items():
        assert {row["item"] for row in records(sold_out(table, column, texts))} == items


@BOTH_FORMS
def test_items_out_of_stock_or_not_seen_lately_are_left_out_and_counted(
    spark: SparkSession, tables: Frames, log: pd.DataFrame, as_rows: AsRows
) -> None:
    items, rows = as_rows(tables[1].drop("item_index")), as_rows(tables[2])
    frame = spark.createDataFrame([("i00",), ("i14",), ("unknown",)], "item_key string")
    kept, dropped = available_items(items, within(rows, 2, RUN_DATE, "UTC"), as_rows(frame))
    seen = set(log[log.features_dt >= DAYS[-2]].item_key) & set(ITEMS)
    assert {row["item_key"] for row in records(kept)} == seen - {"i00", "i14"}
    assert dropped == {"out_of_stock": 2, "inactive": len(set(ITEMS) - seen - {"i00", "i14"})}
    assert sum(dropped.values()) + count(kept) == len(ITEMS)
    assert columns_of(kept) == columns_of(items)
    same, none = available_items(items, None, None)
    assert (count(same), none) == (15, {})
    with pytest.raises(DataError, match=r"no item is left.*inactive.*15"):
        available_items(items, as_rows(tables[2].where("false")), None)


@BOTH_FORMS
def test_days_are_those_of_events_where_rows_have_a_time(spark: SparkSession, as_rows: AsRows) -> None:
    day = 86_400_000_000
    first = 20_459 * day  # 2026-01-06
    times = [first - day - 1, first - day, first - 1, first, first + day - 1, first + day]
    frame = spark.createDataFrame([(time, RUN_DATE) for time in times], "event_time long, features_dt string")
    rows = as_rows(frame)
    assert [row["event_time"] for row in records(within(rows, 1, RUN_DATE, "UTC"))] == times[3:5]
    assert [row["event_time"] for row in records(within(rows, 2, RUN_DATE, "UTC"))] == times[1:5]
    # The day begins at 10:00 UTC in Honolulu, and at 10:00 UTC of the day before in Kiritimati.
    honolulu = records(within(rows, 1, RUN_DATE, "Pacific/Honolulu"))
    assert [row["event_time"] for row in honolulu] == times[4:]
    kiritimati = records(within(rows, 1, RUN_DATE, "Pacific/Kiritimati"))
    assert [row["event_time"] for row in kiritimati] == times[2:4]
    days = [(value,) for value in [*DAYS, "2026-01-07"]]
    dated = as_rows(spark.createDataFrame(days, "features_dt string"))
    assert [row["features_dt"] for row in records(within(dated, 2, RUN_DATE, "UTC"))] == DAYS[-2:]


@BOTH_FORMS
def test_a_log_without_clicks_gives_empty_lists_but_for_popular_items(
    spark: SparkSession, tables: Frames, store: VectorStore, as_rows: AsRows
) -> None:
    shown = as_rows(spark.createDataFrame([("u01", "i01", 0.0, DAYS[0])], ROWS))
    world = (as_rows(tables[0]), as_rows(tables[1]), shown)
    assert not any(lists_of({"source": "covisitation"}, world, False, store=store).values())
    in_segment = {"source": "popular", "segment": "segment", "n": 5}
    assert not any(lists_of(in_segment, world, False, as_rows(segments_of(spark))).values())
    popular = lists_of({"source": "popular", "n": 2}, world, False)
    assert {tuple(listed) for listed in popular.values()} == {(0, 1)}


@BOTH_FORMS
def test_observed_items_are_those_of_every_row(tables: Frames, log: pd.DataFrame, as_rows: AsRows) -> None:
    users, items, rows = map(as_rows, tables)
    actual = exclude(users, items, observed_items(rows, items), [], known_as="observed")
    rated = log[log.item_key.isin(ITEMS)].groupby("user_key").item_key.agg(set)
    expected = {user: sorted(map(ITEMS.index, rated.get(user, ()))) or None for user in USERS}
    assert {row["user_key"]: row["excluded"] for row in records(actual.users)} == expected
    assert actual.counts == {"observed": rated.map(len).sum()}
    assert actual.most == rated.map(len).max()


@BOTH_FORMS
def test_a_user_who_clicked_everything_and_a_catalogue_of_one_item(
    spark: SparkSession, tables: Frames, store: VectorStore, as_rows: AsRows
) -> None:
    users = as_rows(tables[0])
    items = number_items(as_rows(spark.createDataFrame([("only",)], "item_key string")))
    rows = as_rows(spark.createDataFrame([("u00", "only", 1.0, DAYS[0])], ROWS))
    clicked = exclude(users, items, clicked_items(rows, items), [])
    sources = [{"source": "covisitation"}, {"source": "popular"}]
    config = Candidates.model_validate({"sources": sources})
    candidates = make_candidates(config, SourceTables(clicked, items, rows, RUN_DATE, store=store))
    candidate_rows = {row["user_key"]: row for row in records(candidates)}
    assert candidate_rows["u00"]["candidates"] == []
    for user in USERS[1:]:
        assert candidate_rows[user]["candidates"] == [0]
        assert candidate_rows[user]["sources"] == [1]
