"""Trainings on real Horovod ranks inside Spark tasks."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.sql import SparkSession

from conf.errors import DataError, InfrastructureError
from storage.feature_spec import FeatureSpec
from storage.paths import LakePaths
from tests.training.feature_rows import Rows, segment_rows, wish_rows
from tests.training.feature_tables import make_config, publish_all
from training.data.sharding import DataFile
from training.launch import train_on_ranks
from training.loop.run import train_in_process
from training.loop.training_plan import TrainPlan, make_plan

RUN_DATE = "2026-01-04"


DLRM = {"architecture": "dlrm", "embedding_dim": 8, "bottom_mlp": [8, 8], "top_mlp": [16]}
WIDE_AND_DEEP = {
    "architecture": "wide_and_deep",
    "embedding_dim": 8,
    "deep": [64, 16],
    "dropout": 0.1,
    "wide_ftrl": {"beta": 0.1, "l1": 1e-6},
    "multi_hot": {"pooling": "sum", "max_length": 4},
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> TrainPlan:
    return make(LakePaths(str(tmp_path_factory.mktemp("lake"))), DLRM, segment_rows)


def make(
    lake: LakePaths, model: dict[str, Any], rows_of: Callable[[int, int], tuple[FeatureSpec, Rows]]
) -> TrainPlan:
    spec, train = rows_of(30_000, 1)
    held_out = {
        split: {dt: rows_of(8_000, seed)[1]}
        for split, dt, seed in [("validation", "2026-01-03", 2), ("test", RUN_DATE, 3)]
    }
    dataset = publish_all(lake, RUN_DATE, spec, {"train": {"2026-01-02": train}, **held_out}, file_rows=4_096)
    train_section = {"global_batch_size": 512, "log_every_steps": 1, "device": "cpu", "epochs": 2}
    return make_plan(make_config(lake, model=model, train=train_section), lake, dataset)


def on_ranks(plan: TrainPlan, ranks: int, folder: Path) -> TrainPlan:
    train = plan.train.model_copy(update={"num_ranks": ranks})
    return replace(
        plan, train=train, model_path=str(folder / "model"), checkpoint_path=str(folder / "checkpoints")
    )


@pytest.mark.parametrize("model, rows_of", [(DLRM, segment_rows), (WIDE_AND_DEEP, wish_rows)])
def test_two_ranks_equal_one(
    spark: SparkSession, tmp_path: Path, model: dict[str, Any], rows_of: Any
) -> None:
    """Also where FTRL trains rows of its own, masks are drawn at random and features are lists."""
    plan = make(LakePaths(str(tmp_path / "lake")), model, rows_of)
    handler = signal.getsignal(signal.SIGTERM)
    two = train_on_ranks(spark, on_ranks(plan, 2, tmp_path / "2"))
    assert signal.getsignal(signal.SIGTERM) == handler
    torch.set_num_threads(1)
    one = train_in_process(on_ranks(plan, 1, tmp_path / "1"))
    losses = np.array([[entry["loss"] for entry in training["history"]] for training in (one, two)])
    assert losses.shape == (2, 118)
    np.testing.assert_allclose(losses[1, :50], losses[0, :50], rtol=1e-4)
    assert not np.array_equal(losses[0], losses[1])  # sums over ranks do round differently
    for split in ("validation", "test"):
        auc = one["metrics"][split]["auc"]
        assert auc > 0.75
        assert two["metrics"][split]["auc"] == pytest.approx(auc, abs=2e-3)
        assert two["metrics"][split]["rows"] == 8_000
    assert (one["num_ranks"], two["num_ranks"]) == (1, 2)


def test_what_a_rank_finds_wrong_reaches_the_driver(
    spark: SparkSession, plan: TrainPlan, tmp_path: Path
) -> None:
    *files, last = plan.train_files
    short = on_ranks(replace(plan, train_files=(*files, DataFile(last.path, last.rows + 1))), 2, tmp_path)
    with pytest.raises(DataError, match=f"{last.path} has .* rows, but its manifest says {last.rows + 1}"):
        train_on_ranks(spark, short)


def test_more_ranks_than_slots_end_at_once(spark: SparkSession, plan: TrainPlan, tmp_path: Path) -> None:
    with pytest.raises(
        InfrastructureError, match=r"train.num_ranks=4 is more than the 2 tasks that Spark \(local\[2\]\)"
    ):
        train_on_ranks(spark, on_ranks(plan, 4, tmp_path))
