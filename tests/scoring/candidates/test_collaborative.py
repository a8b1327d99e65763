"""The sources `ease` and `als` in Spark: NumPy's closed form, planted clusters, exclusions, partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession

from conf.errors import DataError
from conf.types import Candidates
from scoring.candidates.als import als_items, als_vectors
from scoring.candidates.build import make_candidates
from scoring.candidates.candidate_items import number_items
from scoring.candidates.clicks import clicked_items
from scoring.candidates.ease import ease_items
from scoring.candidates.exclusions import Exclusions, exclude
from scoring.candidates.lists_in_spark import VectorStore
from scoring.candidates.source_tables import SourceTables
from scoring.candidates.sources.als import Settings as Als
from scoring.candidates.sources.ease import Settings as Ease

GROUPS, PER_GROUP = 3, 8
ITEMS = [f"i{index:02d}" for index in range(GROUPS * PER_GROUP + 2)]  # nobody clicks the last two
USERS = [f"u{index:02d}" for index in range(37)]  # the last user has no click
RUN_DATE = "2026-01-06"
ROWS = "user_key string, item_key string, label float, features_dt string"
EASE = Ease(source="ease", n=5, l2=3.0)
ALS = Als(source="als", n=5, rank=3, iterations=20, alpha=1.0, seed=7)


@pytest.fixture(scope="module")
def log() -> pd.DataFrame:
    """Users of a group click items of their group, some of them twice; one item is unknown."""
    draw = np.random.default_rng(9)
    rows = []
    for number, user in enumerate(USERS[:-1]):
        group = number % GROUPS
        for item in draw.permutation(PER_GROUP)[: draw.integers(3, 6)]:
            key, day = ITEMS[group * PER_GROUP + item], f"2026-01-0{draw.integers(1, 7)}"
            rows += [(user, key, 1.0, day)] * int(draw.integers(1, 3))
        rows.append((user, ITEMS[draw.integers(0, len(ITEMS))], 0.0, RUN_DATE))
    rows.append(("u00", "gone", 1.0, RUN_DATE))
    return pd.DataFrame(rows, columns=["user_key", "item_key", "label", "features_dt"])


@pytest.fixture(scope="module")
def items(spark: SparkSession) -> DataFrame:
    """The numbered items."""
    return number_items(spark.createDataFrame([(key,) for key in ITEMS], "item_key string")).persist()


@pytest.fixture(scope="module")
def rows(spark: SparkSession, log: pd.DataFrame) -> DataFrame:
    """The log in Spark."""
    return spark.createDataFrame(log, ROWS).persist()


def matrix_of(log: pd.DataFrame) -> np.ndarray:
    """Number of clicks of each user on each item."""
    clicks = log[(log.label == 1) & log.item_key.isin(ITEMS)]
    counts = np.zeros((len(USERS), len(ITEMS)))
    np.add.at(counts, (clicks.user_key.map(USERS.index), clicks.item_key.map(ITEMS.index)), 1)
    return counts


def excluding(spark: SparkSession, items: DataFrame, rows: DataFrame | None) -> Exclusions:
    """Exclusions of the clicked items, or of none."""
    users = spark.createDataFrame([(key,) for key in USERS], "user_key string")
    return exclude(users, items, None if rows is None else clicked_items(rows, items), [])


def lists_of(frame: DataFrame) -> dict[str, list[int]]:
    """User → candidates."""
    return {row.user_key: row.candidates for row in frame.collect()}


def require_best(listed: list[int], scores: np.ndarray, may: np.ndarray, n: int) -> None:
    """Fails unless the list has the n highest scores of the items that it may have, in descending order."""
    allowed = np.flatnonzero(may)
    assert len(set(listed)) == len(listed)
    assert set(listed) <= set(allowed.tolist())
    best = np.sort(scores[allowed])[::-1][:n]
    np.testing.assert_allclose(scores[listed], best, rtol=0, atol=2e-5 * np.abs(scores).max())


@pytest.mark.parametrize("clicked", [False, True])
def test_lists_of_ease_have_the_best_scores_of_the_closed_form(
    spark: SparkSession,
    log: pd.DataFrame,
    items: DataFrame,
    rows: DataFrame,
    store: VectorStore,
    clicked: bool,
) -> None:
    exclusions = excluding(spark, items, rows if clicked else None)
    actual = lists_of(ease_items(EASE, exclusions, rows, items, store))
    binary = (matrix_of(log) > 0).astype(np.float64)
    inverse = np.linalg.inv(binary.T @ binary + EASE.l2 * np.eye(len(ITEMS)))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0)
    assert sorted(actual) == USERS[:-1]
    for user, scores in zip(USERS[:-1], binary @ weights, strict=False):
        own = binary[USERS.index(user)] > 0
        require_best(actual[user], scores, (binary.sum(0) > 0) & ~(own & clicked), EASE.n)


def test_lists_of_als_have_the_best_products_of_mllibs_vectors_and_find_planted_groups(
    spark: SparkSession, log: pd.DataFrame, items: DataFrame, rows: DataFrame, store: VectorStore
) -> None:
    actual = lists_of(als_items(ALS, excluding(spark, items, rows), rows, items, store))
    fitted = als_vectors(ALS, rows, items, store.checkpoints)
    assert fitted is not None
    people = {row.user_key: np.array(row.vector, np.float64) for row in fitted[0].collect()}
    factors = np.zeros((len(ITEMS), ALS.rank))
    for row in fitted[1].collect():
        factors[row.item_index] = row.vector
    counts = matrix_of(log)
    assert sorted(actual) == sorted(people) == USERS[:-1]
    misplaced = total = 0
    for number, user in enumerate(USERS[:-1]):
        may = (counts.sum(0) > 0) & (counts[number] == 0)
        require_best(actual[user], factors @ people[user], may, ALS.n)
        left = PER_GROUP - int((counts[number] > 0).sum())  # items of the user's group
        misplaced += sum(item // PER_GROUP != number % GROUPS for item in actual[user][:left])
        total += left
    assert misplaced < 0.1 * total  # a random order would misplace two thirds and more


def test_user_vectors_of_als_solve_the_normal_equations_of_the_paper(
    log: pd.DataFrame, items: DataFrame, rows: DataFrame, store: VectorStore
) -> None:
    """The confidence of a cell is 1 + alpha · clicks (Hu, Koren and Volinsky 2008, equation 4)."""
    fitted = als_vectors(ALS, rows, items, store.checkpoints)
    assert fitted is not None
    vectors = {row.user_key: row.vector for row in fitted[0].collect()}
    factors = np.zeros((len(ITEMS), ALS.rank))
    for row in fitted[1].collect():
        factors[row.item_index] = row.vector
    for user, clicks in zip(USERS[:-1], matrix_of(log), strict=False):
        confidence = np.diag(1 + ALS.alpha * clicks)
        penalty = ALS.regularization * (clicks > 0).sum() * np.eye(ALS.rank)
        expected = np.linalg.solve(
            factors.T @ confidence @ factors + penalty, factors.T @ confidence @ (clicks > 0)
        )
        np.testing.assert_allclose(vectors[user], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "source",
    [
        {"source": "ease"},
        {"source": "als", "rank": 3, "iterations": 2},
        {"source": "item_knn", "shrink": 2.0, "clicks_per_user": 3},
    ],
    ids=str,
)
def test_lists_do_not_depend_on_the_partitions_of_the_log(
    spark: SparkSession, items: DataFrame, rows: DataFrame, tmp_path: Path, source: dict[str, Any]
) -> None:
    """Also: the users without clicks fall back to popular items, and `window_days` limits the clicks."""
    sources = [{**source, "n": 6, "window_days": 4}, {"source": "popular", "n": 2}]
    config = Candidates.model_validate({"sources": sources})
    exclusions = excluding(spark, items, rows)
    recent = rows.where("features_dt >= '2026-01-03' and label = 1 and item_key != 'gone'").toPandas()
    active = set(recent.user_key)
    results = []
    for number in (1, 3, 8):

        def publish(name: str, vectors: DataFrame, *_: int, folder: Path = tmp_path / str(number)) -> Any:
            vectors.write.parquet(str(folder / name))
            return tuple(map(str, sorted((folder / name).glob("*.parquet"))))

        divided = rows.orderBy("item_key", "user_key").repartition(number)
        tables = SourceTables(
            exclusions,
            items,
            divided,
            RUN_DATE,
            store=VectorStore(publish, "cpu", str(tmp_path / "checkpoints")),
        )
        found = {row.user_key: row for row in make_candidates(config, tables).collect()}
        assert sorted(found) == USERS
        for user, row in found.items():
            assert (0 in row.sources) == (user in active)
            listed = [item for item, of in zip(row.candidates, row.sources, strict=True) if of == 0]
            assert {ITEMS[item] for item in listed} <= set(recent.item_key)
        assert found[USERS[-1]].sources == [1, 1]
        results.append({user: row.candidates for user, row in found.items()})
    assert results[0] == results[1] == results[2]


def test_too_many_items_for_ease_are_refused_with_their_number_and_memory(
    spark: SparkSession, items: DataFrame, rows: DataFrame, store: VectorStore
) -> None:
    config = EASE.model_copy(update={"max_items": 23})
    with pytest.raises(
        DataError, match=r"24 items have clicks, but max_items is 23; .* need 0\.0 GiB[\s\S]*`max_items`"
    ):
        ease_items(config, excluding(spark, items, None), rows, items, store)
    at_limit = EASE.model_copy(update={"max_items": 24})
    assert ease_items(at_limit, excluding(spark, items, None), rows, items, store).columns == [
        "user_key",
        "candidates",
        "scores",
    ]


def test_a_log_without_clicks_and_a_catalogue_of_one_item_that_is_excluded_give_empty_lists(
    spark: SparkSession, items: DataFrame, rows: DataFrame, store: VectorStore
) -> None:
    free, shown = excluding(spark, items, None), rows.where("label = 0")
    assert lists_of(ease_items(EASE, free, shown, items, store)) == {}
    assert lists_of(als_items(ALS, free, shown, items, store)) == {}
    only = number_items(spark.createDataFrame([("only",)], "item_key string"))
    clicked = spark.createDataFrame([("u00", "only", 1.0, RUN_DATE)], ROWS)
    for exclusions, listed in (
        (excluding(spark, only, clicked), []),
        (Exclusions(free.users), [0]),
    ):
        one_store = VectorStore(
            lambda name, vectors, *_, listed=listed: _written(vectors, f"{name}{len(listed)}", store),
            "cpu",
            store.checkpoints,
        )
        by_ease = ease_items(EASE, exclusions, clicked, only, one_store)
        by_als = als_items(ALS, exclusions, clicked, only, one_store)
        assert lists_of(by_ease) == lists_of(by_als) == {"u00": listed}


def _written(vectors: DataFrame, name: str, store: VectorStore) -> tuple[str, ...]:
    count = vectors.count()
    return store.publish(name, vectors, count, len(vectors.collect()[0].vector))
