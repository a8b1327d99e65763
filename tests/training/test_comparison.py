"""The result of a comparison against NumPy: means, deviations, best epochs, the choice; and its old models."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.errors import DataError
from storage.paths import LakePaths
from storage.publish import publish_facts
from tests.training.feature_tables import make_config
from training.registry.comparison import (
    Comparison,
    ExperimentOutcome,
    TrainingOutcome,
    delete_old_experiments,
)


def metrics(auc: float | None, log_loss: float) -> dict[str, Any]:
    return {"auc": auc, "log_loss": log_loss, "normalized_entropy": log_loss / 0.5, "rows": 10}


def description(
    version: str, validation: dict[str, Any], test: dict[str, Any], during: dict[int, dict[str, Any]]
) -> dict[str, Any]:
    """A model.json of 40 steps. `during` maps steps to evaluations."""
    history: list[dict[str, Any]] = [{"step": step, "loss": 0.5} for step in (5, 35)]
    history += [{"step": step, "loss": 0.5, "validation": values} for step, values in during.items()]
    return {
        "version": version,
        "metrics": {"validation": validation, "test": test},
        "history": sorted(history, key=lambda entry: int(entry["step"])),
        "steps": 40,
        "seconds": 2.5,
        "stopped": None,
    }


def experiment(name: str, validation: list[float], test: list[float]) -> ExperimentOutcome:
    """One training a value of log loss; a higher AUC goes with a lower log loss."""
    trainings = [
        TrainingOutcome.of(
            seed, description(f"{name}{seed}", metrics(1 - loss, loss), metrics(1 - other, other), {}), 10
        )
        for seed, (loss, other) in enumerate(zip(validation, test, strict=True))
    ]
    return ExperimentOutcome(name, {"train.epochs": len(name)}, trainings)


_LOSSES = st.lists(st.floats(0.05, 0.95), min_size=3, max_size=3)


@given(st.lists(st.tuples(_LOSSES, _LOSSES), min_size=1, max_size=6))
def test_measures_and_the_choice_are_those_of_numpy(losses: list[tuple[list[float], list[float]]]) -> None:
    experiments = [experiment(f"e{place}", *pair) for place, pair in enumerate(losses)]
    for outcome, (validation, test) in zip(experiments, losses, strict=True):
        assert outcome.mean("validation", "log_loss") == pytest.approx(np.mean(validation))
        assert outcome.mean("test", "auc") == pytest.approx(1 - np.mean(test))
        assert outcome.deviation("validation", "log_loss") == pytest.approx(
            np.std(validation, ddof=1), abs=1e-12
        )
    means = np.array([np.mean(validation) for validation, _ in losses])
    for measure in ("log_loss", "auc", "normalized_entropy"):
        ranked = [int(outcome.name[1:]) for outcome in Comparison("c", measure, experiments).ranked]
        assert sorted(ranked) == list(range(len(losses)))
        assert np.all(np.diff(means[ranked]) >= -1e-12)


@pytest.mark.parametrize("measure", ["log_loss", "auc", "normalized_entropy"])
def test_the_choice_does_not_use_the_test_split(measure: str) -> None:
    good = experiment("good on validation", [0.2, 0.3], [0.9, 0.9])
    bad = experiment("good on test", [0.4, 0.5], [0.1, 0.1])
    for experiments in ([good, bad], [bad, good]):
        assert Comparison("c", measure, experiments).best is good


def test_equal_experiments_are_ordered_as_in_the_file() -> None:
    same = [experiment(name, [0.3], [0.1]) for name in ("b", "a", "c")]
    assert [outcome.name for outcome in Comparison("c", "auc", same).ranked] == ["b", "a", "c"]


def test_the_curve_ends_with_the_last_step_and_has_the_best_epoch() -> None:
    during = {10: metrics(0.7, 0.5), 20: metrics(0.8, 0.4), 30: metrics(0.6, 0.45), 40: metrics(0.6, 0.5)}
    training = TrainingOutcome.of(0, description("v", metrics(0.8, 0.42), metrics(0.5, 0.5), during), 20)
    assert [entry.epoch for entry in training.curve] == [0.5, 1.0, 1.5, 2.0]
    assert [entry.measures["log_loss"] for entry in training.curve] == [0.5, 0.4, 0.45, 0.5]
    assert training.best_epoch("log_loss") == 1.0
    assert training.best_epoch("auc") == 1.0
    assert training.validation["log_loss"] == 0.42, "that of the weights that the model has"
    del during[40]  # the weights of the last step are kept, and measured only after it
    training = TrainingOutcome.of(0, description("v", metrics(0.8, 0.42), metrics(0.5, 0.5), during), 20)
    assert [entry.measures["log_loss"] for entry in training.curve] == [0.5, 0.4, 0.45, 0.42]
    assert training.best_epoch("auc") == 1.0, "the earliest of two equal evaluations"


def test_the_curve_of_an_experiment_has_the_epochs_of_all_its_seeds() -> None:
    long = description("v0", metrics(0.8, 0.4), metrics(0.8, 0.4), {20: metrics(0.6, 0.5)})
    short = {
        **description("v1", metrics(0.7, 0.5), metrics(0.7, 0.5), {}),
        "steps": 20,
        "stopped": "no new best value",
    }
    trainings = [TrainingOutcome.of(seed, values, 20) for seed, values in enumerate((long, short))]
    outcome = ExperimentOutcome("e", {}, trainings)
    assert outcome.curve("log_loss") == [(1.0, 0.5)]
    assert outcome.curve("auc") == [(1.0, pytest.approx(0.65))]
    assert trainings[1].stopped == "no new best value"


def test_an_experiment_with_a_failed_training_is_not_chosen() -> None:
    failed = ExperimentOutcome(
        "failed", {}, [experiment("x", [0.1], [0.1]).trainings[0], TrainingOutcome(1, "x1", "loss is nan")]
    )
    good = experiment("good", [0.4, 0.4], [0.4, 0.4])
    comparison = Comparison("c", "log_loss", [failed, good])
    assert comparison.ranked == [good]
    assert comparison.versions == ["good0", "good1", "x0"]
    with pytest.raises(DataError, match="the first error is: loss is nan"):
        _ = Comparison("c", "log_loss", [failed]).best


def test_an_undefined_measure_gives_no_choice() -> None:
    values = description("v", metrics(None, 0.2), metrics(0.5, 0.2), {})
    outcome = ExperimentOutcome("one label", {}, [TrainingOutcome.of(0, values, 10)])
    with pytest.raises(DataError, match="auc of the validation split is undefined"):
        _ = Comparison("c", "auc", [outcome]).best
    assert Comparison("c", "log_loss", [outcome]).best is outcome


def test_facts_are_json_and_give_the_same_comparison() -> None:
    outcomes = [experiment("a", [0.2, 0.3], [0.1, 0.2]), experiment("b", [0.25, 0.3], [0.1, 0.2])]
    comparison = Comparison("c", "log_loss", outcomes)
    facts = json.loads(json.dumps(comparison.facts(), allow_nan=False))
    assert facts["best"] == "a"
    assert facts["versions"] == ["a0", "a1", "b0", "b1"]
    assert Comparison.from_facts(facts).facts() == comparison.facts()


def test_old_models_that_no_comparison_names_and_no_treatment_needs_are_deleted(tmp_path: Path) -> None:
    lake = LakePaths(str(tmp_path))
    running = {"name": "ab", "share": 0.1, "model": "treat0", "start": "2026-01-01", "end": "2026-12-31"}
    config = make_config(
        lake,
        model={"architecture": "dlrm"},
        output={"grace_hours": 24},
        serving={"experiment": running},
    )
    models = tmp_path / "models/tiny-experiments"
    served = tmp_path / "models/tiny/old0"
    names = ("named0", "old0", "new0", "half0", "treat0")
    for folder in (*(models / name for name in names), served):
        folder.mkdir(parents=True)
        (folder / "dense-0badf00d.safetensors").write_text("weights")
        if folder.name != "half0":
            (folder / "model.json").write_text("{}")
    checkpoint = tmp_path / "checkpoints/half0"
    checkpoint.mkdir(parents=True)
    (checkpoint / "step-000000000010.json").write_text("{}")
    outcome = experiment("named", [0.5], [0.5])
    facts = Comparison("other", "auc", [outcome]).facts()
    publish_facts(lake.comparisons("other").partition("2026-01-01"), inputs={}, facts=facts)
    long_ago = time.time() - 25 * 3600
    for file in (*models.rglob("*"), *served.iterdir()):
        if file.is_file() and file.parent.name != "new0":
            os.utime(file, (long_ago, long_ago))
    assert delete_old_experiments(config) == 2
    assert sorted(folder.name for folder in models.iterdir()) == ["named0", "new0", "treat0"]
    assert not checkpoint.exists()
    assert len(list(served.iterdir())) == 2
