"""Proposals of a search against Optuna itself: pruning, repeated searches, and records of pruned trainings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.errors import DataError
from conf.experiments import Measure, Search
from training.registry.comparison import TrainingOutcome, ValidationMeasures
from training.registry.search import (
    Proposals,
    PruningRule,
    finished_training,
    outcome_of,
    read_pruned,
    write_pruned,
)

MEASURE_NAMES: list[Measure] = ["auc", "log_loss", "normalized_entropy"]
STEPS = 10  # of an epoch


def searched(**section: Any) -> Search:
    space = {
        "train.learning_rate": {"low": 1e-4, "high": 0.1, "log": True},
        "train.epochs": {"low": 1, "high": 4},
        "model.top_mlp": {"choices": [[64, 32], [128, 64], "texts", None]},
        "train.l2": {"low": 0.0, "high": 1},
    }
    return Search.model_validate({"trials": 20, "space": space, **section})


def outcome(
    values: list[float | None], pruned: float | None = None, final: float | None = None
) -> TrainingOutcome:
    """An outcome with one evaluation at the end of each epoch; all measures have the same value."""
    curve = [
        ValidationMeasures(float(epoch), dict.fromkeys(MEASURE_NAMES, value))
        for epoch, value in enumerate(values, 1)
    ]
    validation: dict[str, float | None] = {}
    if pruned is None:
        validation = dict.fromkeys(map(str, MEASURE_NAMES), final)
    return TrainingOutcome(0, "v", validation=validation, curve=curve, pruned=pruned)


def score(settings: dict[str, Any]) -> float:
    return (
        abs(settings["train.learning_rate"] - 0.01)
        + settings["train.l2"]
        + (settings["model.top_mlp"] is None)
    )


def run_search(search: Search, seed: int, results: list[Any]) -> list[dict[str, Any]]:
    """Asks once for each result; a result is a value, None for a failed trial, or `pruned`."""
    proposals, asked = Proposals(search, "log_loss", seed), []
    for kind in results:
        asked.append(proposals.ask())
        value = score(asked[-1])
        if kind == "failed":
            proposals.tell(TrainingOutcome(0, "v", "loss is nan"))
        elif kind == "pruned":
            proposals.tell(outcome([value], pruned=1.0))
        else:
            proposals.tell(outcome([value + 1, value], final=value))
    return asked


_KINDS = st.lists(st.sampled_from(["complete", "complete", "pruned", "failed"]), min_size=12, max_size=25)


@settings(max_examples=8, deadline=None)
@given(_KINDS, st.integers(0, 2**63 - 1), st.integers(0, 25))
def test_a_replayed_search_goes_on_as_an_uninterrupted_one(results: list[str], seed: int, kill: int) -> None:
    whole = run_search(searched(), seed, results)
    assert run_search(searched(), seed, results[:kill]) == whole[:kill]
    # Also a search whose limits were raised begins with the same trials.
    assert run_search(searched(trials=100, timeout=9.5), seed, results) == whole
    turned = Search.model_validate(
        {**searched().model_dump(), "space": dict(reversed(searched().space.items()))}
    )
    assert run_search(turned, seed, results) == whole
    assert run_search(searched(), seed + 1, results) != whole


def test_proposals_are_in_the_space_and_approach_the_best_values() -> None:
    asked = run_search(searched(), 0, ["complete"] * 40)
    for proposed in asked:
        assert list(proposed) == ["train.learning_rate", "train.epochs", "model.top_mlp", "train.l2"]
        assert 1e-4 <= proposed["train.learning_rate"] <= 0.1
        assert proposed["train.epochs"] in (1, 2, 3, 4)
        assert proposed["model.top_mlp"] in ([64, 32], [128, 64], "texts", None)
        assert isinstance(proposed["train.l2"], float)
        json.dumps(proposed)
    later, random = [score(one) for one in asked[20:]], [score(one) for one in asked[:10]]
    assert sum(later) / len(later) < sum(random) / len(random)
    assert len({json.dumps(one) for one in asked[:10]}) > 5


_CURVES = st.lists(st.lists(st.one_of(st.none(), st.floats(0.1, 0.9)), min_size=1, max_size=4), max_size=9)


@settings(max_examples=60, deadline=None)
@given(_CURVES, st.lists(st.one_of(st.none(), st.floats(0.1, 0.9)), min_size=1, max_size=4), st.data())
def test_the_rule_prunes_what_optunas_median_pruner_prunes(
    earlier: list[list[float | None]], values: list[float | None], data: st.DataObject
) -> None:
    measure = data.draw(st.sampled_from(MEASURE_NAMES))
    proposals = Proposals(searched(), measure, 0)
    for curve in earlier:
        proposals.ask()
        known = [value for value in curve if value is not None]
        proposals.tell(outcome(curve, final=known[-1] if known else None))
    rule = proposals.pruning_rule()
    pruner, study = optuna.pruners.MedianPruner(), proposals._study
    trial = study.ask(proposals._distributions)
    expected = None
    for epoch, value in enumerate(values, 1):
        if value is not None:
            trial.report(value, 1000 * epoch)
            frozen = study.get_trials(deepcopy=False)[trial.number]
            if expected is None and pruner.prune(study, frozen):
                expected = STEPS * epoch
    history = [
        {"step": STEPS * epoch, "validation": {measure: value}} for epoch, value in enumerate(values, 1)
    ]
    history.insert(0, {"step": 5, "loss": 0.5})
    end = STEPS * len(values) + 1
    assert (rule.step(history, STEPS, end) if rule else None) == expected
    if rule is None:
        assert sum(any(value is not None for value in curve) for curve in earlier) < 5


def test_the_last_evaluation_never_prunes() -> None:
    rule = PruningRule("auc", {1000: 0.8, 2000: 0.9})
    history = [{"step": step, "validation": {"auc": 0.85}} for step in (10, 20)]
    assert rule.step(history, 10, 20) is None
    assert rule.step(history, 10, 40) == 20


RULE = PruningRule("log_loss", {1000: 0.6, 2000: 0.4})


def record(*losses: float, **more: Any) -> dict[str, Any]:
    history = [
        {"step": STEPS * epoch, "validation": dict.fromkeys(MEASURE_NAMES, loss)}
        for epoch, loss in enumerate(losses, 1)
    ]
    return {"version": "v", "history": history, "steps": STEPS * len(losses), "seconds": 1.5, **more}


def test_a_record_is_the_outcome_only_of_a_training_that_its_rule_prunes(tmp_path: Path) -> None:
    path = str(tmp_path / "v")
    assert read_pruned(path) is None
    assert finished_training(path, 3, STEPS, RULE) is None
    write_pruned(path, record(0.5, 0.45))
    outcome = finished_training(path, 3, STEPS, RULE)
    assert outcome is not None
    assert (outcome.seed, outcome.version, outcome.pruned, outcome.failure) == (3, "v", 2.0, None)
    assert [entry.epoch for entry in outcome.curve] == [1.0, 2.0]
    assert outcome.validation == outcome.test == {}
    # A stricter rule prunes it earlier. A laxer rule, or none, needs the rest of the training.
    stricter = finished_training(path, 3, STEPS, PruningRule("log_loss", {1000: 0.45}))
    assert stricter is not None
    assert stricter.pruned == 1.0
    assert len(stricter.curve) == 1
    assert finished_training(path, 3, STEPS, PruningRule("log_loss", {2000: 0.46})) is None
    assert finished_training(path, 3, STEPS, None) is None


def test_a_complete_model_is_pruned_by_the_rule_of_a_search() -> None:
    metrics = {split: dict.fromkeys(MEASURE_NAMES, 0.2) for split in ("validation", "test")}
    description = record(0.5, 0.45, 0.2, metrics=metrics, stopped=None)
    assert outcome_of(description, 0, STEPS, None).validation["log_loss"] == 0.2
    assert outcome_of(description, 0, STEPS, RULE).pruned == 2.0
    assert outcome_of(description, 0, STEPS, PruningRule("log_loss", {3000: 0.1})).pruned is None


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    write_pruned(str(tmp_path), record(0.5, 0.45))
    file = tmp_path / "pruned.json"
    damaged = {**json.loads(file.read_text()), "history": "none"}
    del damaged["checksum"]
    file.write_text(json.dumps(damaged))
    with pytest.raises(DataError, match="not a valid record of a pruned training"):
        finished_training(str(tmp_path), 0, STEPS, RULE)
