"""Sources that count clicks add up the weights of rows; the others, and rows without weights, do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from conf.types import Candidates
from scoring.candidates.als import als_vectors
from scoring.candidates.build import make_candidates
from scoring.candidates.candidate_items import number_items
from scoring.candidates.clicks import clicked_items
from scoring.candidates.exclusions import exclude
from scoring.candidates.lists_in_spark import VectorStore
from scoring.candidates.popular import popular_in_segment, popular_items, popularity
from scoring.candidates.source_tables import SourceTables
from scoring.candidates.sources.als import Settings as Als
from spark.rows import records

ITEMS = [f"i{index:02d}" for index in range(12)]  # nobody clicks the last one
USERS = [f"u{index:02d}" for index in range(20)]
ROWS = "user_key string, item_key string, label float, features_dt string, weight float"
WEIGHTS = np.array([0.1, 0.5, 3.0], np.float32)
SEGMENTS = {user: "even" if number % 2 == 0 else "odd" for number, user in enumerate(USERS)}


@pytest.fixture(scope="module")
def log() -> pd.DataFrame:
    draw = np.random.default_rng(4)
    rows = [
        (
            USERS[draw.integers(0, len(USERS))],
            ITEMS[min(draw.geometric(0.2), len(ITEMS) - 1) - 1],
            float(draw.random() < 0.6),
            "2026-01-06",
            WEIGHTS[draw.integers(0, 3)],
        )
        for _ in range(400)
    ]
    rows.append((USERS[0], "gone", 1.0, "2026-01-06", np.float32(3)))
    return pd.DataFrame(rows, columns=["user_key", "item_key", "label", "features_dt", "weight"])


@pytest.fixture(scope="module")
def items(spark: SparkSession) -> DataFrame:
    return number_items(spark.createDataFrame([(key,) for key in ITEMS], "item_key string")).persist()


@pytest.fixture(scope="module")
def rows(spark: SparkSession, log: pd.DataFrame) -> DataFrame:
    values = log.astype({"weight": float})  # Spark has no type for float32 of NumPy
    return spark.createDataFrame(values, ROWS).persist()


def sums_of(log: pd.DataFrame) -> np.ndarray:
    """The summed weight of the clicks on each item, (items,) float64."""
    clicks = log[(log.label == 1) & log.item_key.isin(ITEMS)]
    sums = np.zeros(len(ITEMS))
    np.add.at(sums, clicks.item_key.map(ITEMS.index), clicks.weight.astype(np.float64))
    return sums


def table_of(rows: DataFrame) -> pa.Table:
    return pa.Table.from_pandas(rows.toPandas(), preserve_index=False)


@pytest.mark.parametrize("form", [table_of, lambda rows: rows], ids=["table", "frame"])
def test_popularity_is_the_exact_sum_of_weights(
    spark: SparkSession,
    log: pd.DataFrame,
    items: DataFrame,
    rows: DataFrame,
    form: Callable[[DataFrame], Any],
) -> None:
    counted = popularity(form(rows), form(items))
    found = counted.to_pandas() if isinstance(counted, pa.Table) else counted.toPandas()
    sums = dict(zip(found.item_index, found.clicks, strict=True))
    assert sums == dict(enumerate(sums_of(log)))
    shuffled = popularity(form(rows.orderBy("weight")), form(items))
    again = shuffled.to_pandas() if isinstance(shuffled, pa.Table) else shuffled.toPandas()
    assert dict(zip(again.item_index, again.clicks, strict=True)) == sums
    users = spark.createDataFrame([(key,) for key in USERS], "user_key string")
    lists = popular_items(exclude(form(users), form(items), None, []), counted, 5)
    listed = lists.to_pandas() if isinstance(lists, pa.Table) else lists.toPandas()
    order = sorted(range(len(ITEMS)), key=lambda index: (-sums_of(log)[index], index))[:5]
    by_number = log[log.label == 1].item_key.value_counts()
    assert [ITEMS[index] for index in order] != by_number.index[:5].tolist()  # weights change the order
    scores = np.log1p(sums_of(log)[order]).astype(np.float32)
    for row in listed.itertuples():
        assert list(row.candidates) == order
        np.testing.assert_allclose(row.scores, scores, rtol=1e-6)


def test_popularity_of_a_segment_adds_up_weights(
    spark: SparkSession, log: pd.DataFrame, items: DataFrame, rows: DataFrame
) -> None:
    segments = spark.createDataFrame(list(SEGMENTS.items()), "user_key string, segment string")
    users = spark.createDataFrame([(key,) for key in USERS], "user_key string")
    lists = popular_in_segment(exclude(users, items, None, []), rows, items, segments, 4).collect()
    assert len(lists) == len(USERS)
    for row in lists:
        sums = sums_of(log[log.user_key.map(SEGMENTS) == SEGMENTS[row.user_key]])
        clicked = [index for index in range(len(ITEMS)) if sums[index]]
        assert row.candidates == sorted(clicked, key=lambda index: (-sums[index], index))[:4]


def test_the_confidence_of_als_is_the_summed_weight(
    log: pd.DataFrame, items: DataFrame, rows: DataFrame, store: VectorStore
) -> None:
    """User vectors solve the normal equations with the confidence 1 + alpha · Σ weight (Hu et al. 2008)."""
    config = Als(source="als", n=5, rank=3, iterations=12, alpha=2.0, regularization=0.1, seed=7)
    fitted = als_vectors(config, rows, items, store.checkpoints)
    assert fitted is not None
    factors = np.zeros((len(ITEMS), config.rank))
    for row in fitted[1].collect():
        factors[row.item_index] = row.vector
    clicks = log[(log.label == 1) & log.item_key.isin(ITEMS)]
    worst = 0.0
    for row in fitted[0].collect():
        own = clicks[clicks.user_key == row.user_key]
        ratings = np.zeros(len(ITEMS))
        np.add.at(ratings, own.item_key.map(ITEMS.index), own.weight.astype(np.float64))

        def solution(ratings: np.ndarray) -> np.ndarray:
            extra = config.alpha * ratings
            ridge = config.regularization * (ratings > 0).sum() * np.eye(config.rank)
            left = factors.T @ factors + factors.T @ (extra[:, None] * factors) + ridge
            return np.linalg.solve(left, factors.T @ ((1 + extra) * (ratings > 0)))

        worst = max(worst, np.abs(np.array(row.vector) - solution(ratings)).max())
        numbers = own.item_key.map(ITEMS.index).value_counts().reindex(range(len(ITEMS)), fill_value=0)
        assert np.abs(solution(ratings) - solution(numbers.to_numpy().astype(float))).max() > 1e-3
    assert worst < 1e-4


@pytest.mark.parametrize("form", [table_of, lambda rows: rows], ids=["table", "frame"])
@pytest.mark.parametrize("source", [{"source": "ease", "l2": 3.0}, {"source": "item_knn"}], ids=str)
def test_ease_and_item_knn_do_not_use_weights(
    spark: SparkSession,
    items: DataFrame,
    rows: DataFrame,
    store: VectorStore,
    source: dict[str, Any],
    form: Callable[[DataFrame], Any],
) -> None:
    users = form(spark.createDataFrame([(key,) for key in USERS], "user_key string"))
    config, numbered = Candidates.model_validate({"sources": [{**source, "n": 5}]}), form(items)

    def candidates_of(log: Any) -> list[tuple[Any, ...]]:
        excluded = exclude(users, numbered, clicked_items(log, numbered), [])
        tables = SourceTables(excluded, numbered, log, "2026-01-06", store=store)
        return sorted(
            tuple(row.values()) for row in records(make_candidates(config, tables, with_scores=True))
        )

    with_weights, without = candidates_of(form(rows)), candidates_of(form(rows.drop("weight")))
    assert with_weights == without
    assert any(candidates for _, candidates, *_ in without)
