"""Rankings measured over tasks equal those of one process."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from metrics import map_at_k, ndcg_at_k
from scoring.evaluation.gate_run import measure_groups, reduce_groups
from tests.rows import BOTH_FORMS, AsRows


def predictions(rows: int = 900, groups: int = 120) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Groups of many sizes, some without a click and some with several, and probabilities with ties."""
    draw = np.random.default_rng(3)
    label = (draw.random(rows) < 0.15).astype(np.float32)
    probability = np.round(draw.beta(2, 4, rows), 1).astype(np.float32)
    return draw.integers(0, groups, rows).astype(str), label, probability


@BOTH_FORMS
def test_groups_spread_over_tasks_measure_the_same(spark: SparkSession, as_rows: AsRows) -> None:
    group, label, probability = predictions()
    rows = list(zip(group.tolist(), label.tolist(), probability.tolist(), strict=True))
    frame = spark.createDataFrame(rows, "group_key string, label float, probability float").repartition(7)
    actual = measure_groups(as_rows(frame), 3)
    assert actual["k"] == 3
    assert actual["groups"] == len(set(group[label == 1]))
    assert actual["map"] == pytest.approx(map_at_k(label, probability, group, 3), abs=1e-9)
    assert actual["ndcg"] == pytest.approx(ndcg_at_k(label, probability, group, 3), abs=1e-9)


@BOTH_FORMS
def test_groups_without_a_click_have_no_measures(spark: SparkSession, as_rows: AsRows) -> None:
    frame = spark.createDataFrame([("a", 0.0, 0.5)], "group_key string, label float, probability float")
    assert measure_groups(as_rows(frame), 12) == {"k": 12, "groups": 0, "map": None, "ndcg": None}


def test_a_task_without_a_click_adds_nothing() -> None:
    rows = pa.table({"group_key": ["a", "a"], "label": np.zeros(2, np.float32), "probability": [0.1, 0.2]})
    assert reduce_groups(rows, 12) == {"groups": 0, "map_units": 0, "ndcg_units": 0}
