"""The scores that sources give to their candidates, against NumPy, and their alignment with the candidates."""

from __future__ import annotations

import math
from pathlib import Path
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
from scoring.candidates.source_tables import SourceTables
from scoring.candidates.sources.als import Settings as Als
from scoring.candidates.unite_sources import aligned_scores

ITEMS = [f"i{index:02d}" for index in range(14)]  # nobody clicks the last one
USERS = [f"u{index:02d}" for index in range(20)]  # the last user has no click
RUN_DATE = "2026-01-06"
ROWS = "user_key string, item_key string, label float, features_dt string"
SEGMENTS = {user: "even" if number % 2 == 0 else "odd" for number, user in enumerate(USERS)}
ALS = {"source": "als", "n": 3, "rank": 3, "iterations": 3, "alpha": 1.0, "seed": 7}
SOURCES: list[dict[str, Any]] = [
    {"source": "popular", "n": 4},
    {"source": "ease", "n": 3, "l2": 3.0},
    ALS,
    {"source": "covisitation", "n": 3},
    {"source": "popular", "n": 6, "segment": "half"},
]


@pytest.fixture(scope="module")
def log() -> pd.DataFrame:
    """Every user but the last clicks two to six items, one click each."""
    draw = np.random.default_rng(4)
    rows = [
        (user, ITEMS[item], 1.0, RUN_DATE)
        for user in USERS[:-1]
        for item in draw.permutation(13)[: draw.integers(2, 7)]
    ]
    rows += [(user, ITEMS[draw.integers(13)], 0.0, RUN_DATE) for user in USERS]
    return pd.DataFrame(rows, columns=["user_key", "item_key", "label", "features_dt"])


@pytest.fixture(scope="module")
def items(spark: SparkSession) -> DataFrame:
    """The numbered items."""
    return number_items(spark.createDataFrame([(key,) for key in ITEMS], "item_key string")).persist()


def scores_by_numpy(log: pd.DataFrame, vectors: tuple[DataFrame, DataFrame] | None) -> list[np.ndarray]:
    """The scores (U, N) of each of SOURCES; NaN where the source never proposes the item."""
    clicks = log[log.label == 1]
    matrix = np.zeros((len(USERS), len(ITEMS)))
    matrix[clicks.user_key.map(USERS.index), clicks.item_key.map(ITEMS.index)] = 1
    inverse = np.linalg.inv(matrix.T @ matrix + 3.0 * np.eye(len(ITEMS)))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0)
    popular = np.broadcast_to(np.log1p(matrix.sum(axis=0)), matrix.shape)
    unit = matrix / np.sqrt(matrix.sum(axis=1).clip(1))[:, None]
    lengths = np.linalg.norm(unit, axis=0).clip(1e-12)
    cosine = unit.T @ unit / np.outer(lengths, lengths)
    np.fill_diagonal(cosine, 0)
    of_users, of_items = np.zeros((len(USERS), 3)), np.zeros((len(ITEMS), 3))
    if vectors is not None:
        for row in vectors[0].collect():
            of_users[USERS.index(row.user_key)] = row.vector
        for row in vectors[1].collect():
            of_items[row.item_index] = row.vector
    half = np.array([SEGMENTS[user] == "even" for user in USERS])
    in_half = np.where(half[:, None], matrix[half].sum(axis=0), matrix[~half].sum(axis=0))
    return [popular, matrix @ weights, of_users @ of_items.T, matrix @ cosine, np.log1p(in_half)]


@pytest.mark.parametrize("partitions, most, sources", [(1, None, SOURCES), (5, 7, SOURCES[3:])])
def test_candidates_have_the_score_of_every_source_that_proposed_them(
    spark: SparkSession,
    log: pd.DataFrame,
    items: DataFrame,
    tmp_path: Path,
    partitions: int,
    most: int | None,
    sources: list[dict[str, Any]],
) -> None:
    """An item has the scores of several sources; `max` drops candidates and their scores."""
    rows = spark.createDataFrame(log, ROWS).persist()
    segments = spark.createDataFrame(list(SEGMENTS.items()), "user_key string, segment string")
    users = spark.createDataFrame([(user,) for user in USERS], "user_key string")
    exclusions = exclude(users, items, clicked_items(rows, items), [])

    def publish(name: str, table: DataFrame, *_: int) -> Any:
        table.write.parquet(str(tmp_path / name))
        return tuple(map(str, sorted((tmp_path / name).glob("*.parquet"))))

    store = VectorStore(publish, "cpu", str(tmp_path / "checkpoints"))
    vectors = als_vectors(Als.model_validate(ALS), rows, items, store.checkpoints) if ALS in sources else None
    oracle = [scores_by_numpy(log, vectors)[SOURCES.index(source)] for source in sources]
    config = Candidates.model_validate({"sources": sources, "max": most})
    divided = rows.repartition(partitions, "item_key")
    tables = SourceTables(exclusions, items, divided, RUN_DATE, {"half": segments}, store=store)
    frame = make_candidates(config, tables, with_scores=True)
    assert frame.columns == ["user_key", "candidates", "excluded", "sources", "source_scores"]
    listed = {row.user_key: row for row in frame.collect()}
    assert sorted(listed) == USERS
    several = 0
    for number, user in enumerate(USERS):
        row = listed[user]
        scores = np.array(row.source_scores).reshape(-1, len(sources))
        assert len(scores) == len(row.candidates) <= (most or 100)
        for source, settings in enumerate(sources):
            of_source = {
                item: score
                for item, score in zip(row.candidates, scores[:, source], strict=True)
                if not math.isnan(score)
            }
            expected = [oracle[source][number, item] for item in of_source]
            np.testing.assert_allclose(list(of_source.values()), expected, rtol=0, atol=1e-4)
            assert len(of_source) <= settings["n"]
            first = [item for item, of in zip(row.candidates, row.sources, strict=True) if of == source]
            assert set(first) <= set(of_source)
            if settings == {"source": "popular", "n": 4}:
                assert len(of_source) == 4  # every user has enough items that are not excluded
        several = max(several, int((~np.isnan(scores)).sum(axis=1).max(initial=0)))
    assert several >= min(len(sources), 4)
    without_clicks = np.array(listed[USERS[-1]].source_scores).reshape(-1, len(sources))
    for source, settings in enumerate(sources):
        if settings["source"] != "popular":  # the other sources need clicks of the user
            assert np.isnan(without_clicks[:, source]).all()


def test_scores_are_aligned_by_user_and_item() -> None:
    ints, floats = pa.list_(pa.int32()), pa.list_(pa.float32())
    candidates = pa.array([[7, 3], [], [3]], ints)
    first = (pa.array([[3, 9], None, [7]], ints), pa.array([[0.5, 2.0], None, [4.0]], floats))
    second = (pa.array([[7, 3], [3], [3]], ints), pa.array([[1.0, -1.0], [8.0], [6.0]], floats))
    scores = aligned_scores(candidates, [first, second])
    expected = np.array([[np.nan, 1.0], [0.5, -1.0], [np.nan, 6.0]], np.float32)
    np.testing.assert_array_equal(scores, expected)
    assert scores.dtype == np.float32
    nothing = (pa.array([None], ints), pa.array([None], floats))
    assert aligned_scores(pa.array([[]], ints), [nothing]).shape == (0, 1)
