"""The source `item_knn` against NumPy: cosine with shrinkage, neighbours, the latest items, exclusions, days."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession

from conf.types import Candidates
from scoring.candidates.build import make_candidates
from scoring.candidates.candidate_items import number_items
from scoring.candidates.clicks import clicked_items
from scoring.candidates.exclusions import exclude
from scoring.candidates.lists_in_spark import VectorStore
from scoring.candidates.source_tables import SourceTables
from spark.rows import Rows, records
from tests.rows import BOTH_FORMS, AsRows

USERS = [f"u{index:02d}" for index in range(14)]  # the last user has no click
ITEMS = [f"i{index:02d}" for index in range(12)]  # nobody clicks the last item
DAYS = [f"2026-01-0{day}" for day in range(1, 7)]
ROWS = "user_key string, item_key string, label float, features_dt string"


@pytest.fixture(scope="module")
def log() -> pd.DataFrame:
    """Clicks on days, some of them repeated; u00 clicked much more than the others; one item is unknown."""
    draw = np.random.default_rng(6)
    count = 110
    rows = pd.DataFrame(
        {
            "user_key": draw.choice(USERS[1:-1], count),
            "item_key": draw.choice([*ITEMS[:-1], "gone"], count),
            "label": (draw.random(count) < 0.5).astype(np.float32),
            "features_dt": draw.choice(DAYS, count),
        }
    )
    active = pd.DataFrame(
        {"user_key": "u00", "item_key": ITEMS[:9], "label": np.float32(1), "features_dt": DAYS[3]}
    )
    return pd.concat([rows, active, active[:2]], ignore_index=True)


@pytest.fixture(scope="module")
def items(spark: SparkSession) -> DataFrame:
    return number_items(spark.createDataFrame([(key,) for key in ITEMS], "item_key string")).persist()


@pytest.fixture(scope="module")
def rows(spark: SparkSession, log: pd.DataFrame) -> DataFrame:
    return spark.createDataFrame(log, ROWS).persist()


def matrix_of(log: pd.DataFrame, most: int) -> np.ndarray:
    """(users, items), 1 for the last `most` items of each user; on one day, the first items in order."""
    clicks = log[(log.label == 1) & log.item_key.isin(ITEMS)]
    matrix = np.zeros((len(USERS), len(ITEMS)), np.int64)
    for user, of_user in clicks.groupby("user_key"):
        latest = of_user.groupby("item_key").features_dt.max()
        order = sorted(latest.index, key=lambda key: (-DAYS.index(latest[key]), key))
        matrix[USERS.index(str(user)), [ITEMS.index(key) for key in order[:most]]] = 1
    return matrix


def scores_of(matrix: np.ndarray, neighbours: int, shrink: float) -> np.ndarray:
    """(users, items) int64: sums of similarities in units of 2⁻³⁰, one pair of items at a time."""
    near = np.zeros((len(ITEMS), len(ITEMS)), np.int64)
    for i in range(len(ITEMS)):
        similar = []
        for j in range(len(ITEMS)):
            both = int((matrix[:, i] * matrix[:, j]).sum())
            if i != j and both:
                size = np.sqrt(float(matrix[:, i].sum())) * np.sqrt(float(matrix[:, j].sum())) + shrink
                similar.append((-int(np.floor(both / size * 2**30 + 0.5)), j))
        for value, j in sorted(similar)[:neighbours]:
            near[i, j] = -value
    return matrix @ near


@dataclass(frozen=True)
class Inputs:
    """Users, items and the log in one form, and a store."""

    users: Rows
    items: Rows
    rows: Rows
    store: VectorStore

    def candidates(self, sources: list[dict[str, Any]], clicked: bool = False) -> dict[str, dict[str, Any]]:
        """User → the row of candidates of these sources, without clicked items or with them."""
        known = clicked_items(self.rows, self.items) if clicked else None
        excluded = exclude(self.users, self.items, known, [])
        tables = SourceTables(excluded, self.items, self.rows, DAYS[-1], store=self.store)
        rows = make_candidates(Candidates.model_validate({"sources": sources}), tables)
        actual = {row["user_key"]: row for row in records(rows)}
        assert sorted(actual) == USERS
        return actual


@pytest.fixture
def inputs(
    spark: SparkSession, items: DataFrame, rows: DataFrame, store: VectorStore, as_rows: AsRows
) -> Inputs:
    users = spark.createDataFrame([(key,) for key in USERS], "user_key string")
    return Inputs(as_rows(users), as_rows(items), as_rows(rows), store)


@BOTH_FORMS
@pytest.mark.parametrize(
    "n, neighbours, clicks, shrink, clicked",
    [(40, 100, 200, 0.0, False), (3, 2, 200, 2.5, True), (4, 3, 4, 0.5, True), (5, 4, 1, 1.0, False)],
)
def test_lists_have_the_highest_sums_of_similarities(
    log: pd.DataFrame,
    inputs: Inputs,
    n: int,
    neighbours: int,
    clicks: int,
    shrink: float,
    clicked: bool,
) -> None:
    source = {"source": "item_knn", "n": n, "neighbours": neighbours}
    source |= {"clicks_per_user": clicks, "shrink": shrink}
    by_user = inputs.candidates([source], clicked)
    actual = {user: row["candidates"] for user, row in by_user.items()}
    scores = scores_of(matrix_of(log, clicks), neighbours, shrink)
    gone = matrix_of(log, len(ITEMS)) * clicked
    for number, user in enumerate(USERS):
        allowed = np.flatnonzero((scores[number] > 0) & (gone[number] == 0)).tolist()
        assert actual[user] == sorted(allowed, key=lambda item: (-scores[number, item], item))[:n]
    assert actual[USERS[-1]] == []
    assert any(actual.values()) == (clicks > 1)


@BOTH_FORMS
def test_only_clicks_of_the_window_count(log: pd.DataFrame, inputs: Inputs) -> None:
    """Users without clicks in the window get the items of the next source."""
    sources = [{"source": "item_knn", "n": 4, "window_days": 2}, {"source": "popular", "n": 2}]
    actual = inputs.candidates(sources)
    recent = log[log.features_dt >= DAYS[-2]]
    scores = scores_of(matrix_of(recent, 200), 100, 0.0)
    for number, user in enumerate(USERS):
        best = sorted(np.flatnonzero(scores[number]).tolist(), key=lambda item: (-scores[number, item], item))
        row = actual[user]
        assert row["candidates"][: row["sources"].count(0)] == best[:4]
    assert sum(0 in row["sources"] for row in actual.values()) > 3
    assert actual["u00"]["sources"] == [1, 1]  # this user's clicks are older


@BOTH_FORMS
def test_a_log_without_clicks_gives_empty_lists(inputs: Inputs, rows: DataFrame, as_rows: AsRows) -> None:
    shown = replace(inputs, rows=as_rows(rows.where("label = 0")))
    assert not any(row["candidates"] for row in shown.candidates([{"source": "item_knn"}]).values())
