"""Which weights a trained model has: those of the best evaluation, or of the last step (`train.keep`)."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.sql import SparkSession

from storage.paths import LakePaths
from tests.training.feature_rows import Rows, make_spec, random_rows
from tests.training.feature_tables import make_config, publish_all
from tests.training.ranks_in_threads import on_ranks
from training.checkpoints import checkpoints
from training.collectives import Collectives
from training.launch import train_on_ranks
from training.loop import run as loop_run
from training.loop import training_loop
from training.loop.evaluate import evaluate
from training.loop.kept_steps import best_evaluation
from training.loop.run import run_plan, train_in_process
from training.loop.training_plan import TrainPlan, make_plan

DLRM = {"architecture": "dlrm", "embedding_dim": 8, "bottom_mlp": [8, 8], "top_mlp": [16]}
RUN_DATE = "2026-01-04"
SPEC = make_spec(2, [9, 40])
EPOCH = 10  # steps


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def plan_of(
    folder: Path, validation: Rows | None = None, model: dict[str, Any] = DLRM, **train: Any
) -> TrainPlan:
    """A training that memorizes random labels, so its measure on the validation split goes up and down."""
    lake = LakePaths(str(folder))
    days = {"train": "2026-01-02", "validation": "2026-01-03", "test": RUN_DATE}
    splits = {split: {dt: random_rows(SPEC, 600, seed)} for seed, (split, dt) in enumerate(days.items())}
    if validation is not None:
        splits["validation"] = {"2026-01-03": validation}
    section = {
        "global_batch_size": 64,
        "num_shards": 4,
        "num_ranks": 1,
        "epochs": 4,
        "learning_rate": 0.03,
        "device": "cpu",
        **train,
    }
    config = make_config(lake, model=model, train=section)
    return make_plan(config, lake, publish_all(lake, RUN_DATE, SPEC, splits, file_rows=100))


def elsewhere(plan: TrainPlan, folder: Path, **train: Any) -> TrainPlan:
    """The same training with some other settings, which writes to another folder."""
    section = plan.train.model_copy(update=train)
    return replace(plan, train=section, model_path=f"{folder}/m", checkpoint_path=f"{folder}/c")


def evaluations(description: dict[str, Any], metric: str = "auc") -> dict[int, float]:
    history = description["history"]
    return {entry["step"]: entry["validation"][metric] for entry in history if "validation" in entry}


def contents(description: dict[str, Any]) -> list[str]:
    """Checksums of all weights, and of the state of the optimizers."""
    return sorted(file["crc32"] for file in description["files"])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainPlan, dict[str, Any]]:
    plan = plan_of(tmp_path_factory.mktemp("undisturbed"))
    return plan, train_in_process(plan)


def test_the_epoch_with_the_best_measure_is_kept(
    undisturbed: tuple[TrainPlan, dict[str, Any]], tmp_path: Path
) -> None:
    plan, description = undisturbed
    measured, kept = evaluations(description), description["kept"]
    assert list(measured) == [EPOCH, 2 * EPOCH, 3 * EPOCH, 4 * EPOCH]
    best = max(measured, key=lambda step: measured[step])
    assert best < description["steps"] == 4 * EPOCH, "the example must get worse"
    assert kept == {
        "step": best,
        "epoch": best // EPOCH,
        "metric": "auc",
        "value": measured[best],
        "best_step": best,
    }
    assert description["metrics"]["validation"]["auc"] == measured[best]
    ended_there = train_in_process(replace(elsewhere(plan, tmp_path, keep="last"), last_step=best))
    assert contents(description) == contents(ended_there)
    assert description["metrics"] == ended_there["metrics"]
    assert not Path(plan.checkpoint_path).exists()


def test_the_last_step_is_kept_on_request(
    undisturbed: tuple[TrainPlan, dict[str, Any]], tmp_path: Path
) -> None:
    plan, best = undisturbed
    last = train_in_process(elsewhere(plan, tmp_path, keep="last"))
    assert last["kept"] == {"step": 4 * EPOCH, "epoch": 4, "metric": None, "value": None, "best_step": None}
    assert evaluations(last) == {}
    assert last["metrics"]["validation"]["auc"] == evaluations(best)[4 * EPOCH]
    assert contents(last) != contents(best)


@pytest.mark.parametrize(
    "model, embeddings",
    [
        ({**DLRM, "embedding_storage": "bf16"}, {"optimizer": "lazy_adam"}),
        ({"architecture": "wide_and_deep", "embedding_dim": 8, "deep": [16], "dropout": 0.2}, {}),
    ],
)
def test_every_state_of_a_training_is_that_of_the_kept_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any], embeddings: dict[str, Any]
) -> None:
    """Rows of 16 bits, moments of rows, and weights that FTRL trains."""
    plan = plan_of(tmp_path, model=model, embeddings=embeddings)
    aucs = iter([0.6, 0.7, 0.5, 0.6])

    def measure(*arguments: Any) -> dict[str, Any]:
        measured = evaluate(*arguments)
        return {**measured, "auc": next(aucs, measured["auc"])}

    monkeypatch.setattr(loop_run, "evaluate", measure)
    description = train_in_process(plan)
    assert description["kept"]["step"] == 2 * EPOCH
    ended_there = train_in_process(replace(elsewhere(plan, tmp_path, keep="last"), last_step=2 * EPOCH))
    assert contents(description) == contents(ended_there)


@pytest.mark.parametrize("metric", ["auc", "log_loss"])
def test_evaluations_inside_an_epoch_count_and_by_the_metric_of_stop_at(tmp_path: Path, metric: str) -> None:
    stop_at = {"metric": metric, "patience": 100}
    # One checkpoint, and many after the best: the best one must not be deleted.
    settings = {"evaluate_every_steps": 4, "keep_checkpoints": 1, "checkpoint_every_steps": 1}
    description = train_in_process(plan_of(tmp_path, stop_at=stop_at, epochs=3, **settings))
    measured = evaluations(description, metric)
    assert list(measured) == [4, 8, 10, 12, 16, 20, 24, 28, 30]
    best = (max if metric == "auc" else min)(measured, key=lambda step: measured[step])
    assert best < 28, "the example must get worse"
    assert (description["kept"]["step"], description["kept"]["metric"]) == (best, metric)
    assert description["metrics"]["validation"][metric] == measured[best]


def test_a_resumed_training_keeps_the_same_step(
    undisturbed: tuple[TrainPlan, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed after its best step, and once more while it resumes."""
    plan, expected = undisturbed
    killed_at = [expected["kept"]["step"] + 2, 3 * EPOCH + 8]
    resumed = elsewhere(plan, tmp_path, checkpoint_every_steps=7, keep_checkpoints=1)
    original = training_loop.learning_rate_factor

    class KilledError(Exception):
        """Stands for a killed process."""

    def until(step: int) -> Any:
        def factor(done: int, *arguments: Any) -> float:
            if done == step:
                raise KilledError
            return original(done, *arguments)

        return factor

    for step in killed_at:
        monkeypatch.setattr(training_loop, "learning_rate_factor", until(step))
        with pytest.raises(KilledError):
            train_in_process(resumed)
    monkeypatch.setattr(training_loop, "learning_rate_factor", original)
    actual = train_in_process(resumed)
    assert actual["kept"] == expected["kept"]
    assert (contents(actual), actual["metrics"]) == (contents(expected), expected["metrics"])
    assert evaluations(actual) == evaluations(expected)


def test_ranks_with_rows_of_their_own_load_the_same_step(tmp_path: Path) -> None:
    embeddings = {"placement": "row_wise"}
    plan = plan_of(tmp_path, num_ranks=2, embeddings=embeddings)

    def body(collectives: Collectives) -> dict[str, Any]:
        return run_plan(plan, collectives, torch.device("cpu"))

    first, second = on_ranks(2, body)
    assert first == second
    measured = evaluations(first)
    assert first["kept"]["step"] == max(measured, key=lambda step: measured[step]) < 4 * EPOCH
    assert first["metrics"]["validation"]["auc"] == pytest.approx(first["kept"]["value"], abs=1e-9)


def test_horovod_ranks_keep_the_best_step(spark: SparkSession, tmp_path: Path) -> None:
    description = train_on_ranks(spark, plan_of(tmp_path, num_ranks=2))
    measured = evaluations(description)
    assert description["num_ranks"] == 2
    assert description["kept"]["step"] == max(measured, key=lambda step: measured[step]) < 4 * EPOCH
    assert description["metrics"]["validation"]["auc"] == pytest.approx(description["kept"]["value"])


def memory_missing(monkeypatch: pytest.MonkeyPatch, plan: TrainPlan) -> None:
    monkeypatch.setattr(checkpoints, "available_memory", lambda: 0)


def disk_full(monkeypatch: pytest.MonkeyPatch, plan: TrainPlan) -> None:
    monkeypatch.setattr(checkpoints.CheckpointFolder, "free_bytes", lambda self: 1)


def copy_lost(monkeypatch: pytest.MonkeyPatch, plan: TrainPlan) -> None:
    original = checkpoints.Checkpoints.load

    def load(self: checkpoints.Checkpoints, trainer: Any, step: int) -> bool:
        for path in Path(plan.checkpoint_path).glob(f"step-{step:012d}.*.dense.safetensors"):
            path.write_bytes(b"damaged")
        return original(self, trainer, step)

    monkeypatch.setattr(checkpoints.Checkpoints, "load", load)


@pytest.mark.parametrize(
    "disturb, reason",
    [
        (memory_missing, "a copy of the training's state needs 0 MiB of memory on "),
        (disk_full, "a checkpoint needs 0 MiB in "),
        (copy_lost, "is damaged"),
    ],
)
def test_without_a_copy_of_the_best_weights_the_last_are_kept_and_the_step_is_reported(
    undisturbed: tuple[TrainPlan, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    disturb: Any,
    reason: str,
) -> None:
    caplog.set_level(logging.WARNING, "nightrank.training")
    plan, expected = undisturbed
    plan = elsewhere(plan, tmp_path)
    disturb(monkeypatch, plan)
    description = train_in_process(plan)
    best, last = expected["kept"]["step"], 4 * EPOCH
    assert (description["kept"]["step"], description["kept"]["best_step"]) == (last, best)
    assert description["kept"]["value"] == description["metrics"]["validation"]["auc"]
    assert description["kept"]["value"] == evaluations(expected)[last]
    warnings = " ".join(record.getMessage() for record in caplog.records)
    assert reason in warnings
    assert f"the model has the weights of the last step ({last}), although the auc" in warnings
    assert f"was best after step {best}: {expected['kept']['value']:.5f}" in warnings


def test_a_measure_that_is_never_defined_chooses_no_step(tmp_path: Path) -> None:
    rows = random_rows(SPEC, 100, 5)
    only_clicks = replace(rows, labels=np.ones_like(rows.labels))
    description = train_in_process(plan_of(tmp_path, only_clicks, epochs=2))
    assert evaluations(description) == {EPOCH: None, 2 * EPOCH: None}
    assert description["kept"] == {
        "step": 2 * EPOCH,
        "epoch": 2,
        "metric": "auc",
        "value": None,
        "best_step": None,
    }


def test_one_epoch_is_measured_only_at_its_end(tmp_path: Path) -> None:
    description = train_in_process(plan_of(tmp_path, epochs=1))
    assert evaluations(description) == {}
    assert description["kept"]["step"] == EPOCH


def entry(step: int, **metrics: float | None) -> dict[str, Any]:
    return {"step": step, "validation": metrics}


def test_the_first_of_equal_values_is_the_best() -> None:
    history = [entry(1, auc=None), entry(2, auc=0.7), {"step": 3}, entry(4, auc=0.7), entry(5, auc=0.6)]
    assert best_evaluation(history, "auc") == history[1]
    losses = [entry(1, log_loss=0.5), entry(2, log_loss=0.4), entry(3, log_loss=0.4)]
    assert best_evaluation(losses, "log_loss") == losses[1]
    assert best_evaluation([{"step": 3}, entry(4, auc=None)], "auc") is None
