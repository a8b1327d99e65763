"""The training loop with a fake trainer and loader: order of the hooks, errors, early ends, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from conf.types import StopAt, Train
from training.checkpoints import Checkpoints, Position
from training.data.batch import Batch
from training.data.loader import Loader
from training.loop.evaluate import Validation
from training.loop.kept_steps import EarlyStopping, Prune, SaveCheckpoints, StopAtStep
from training.loop.progress_output import Meter
from training.loop.train_step import Trainer
from training.loop.training_loop import Callback, StepResult, TrainingLoop, TrainingResult, TrainingState
from training.registry.search import PruningRule

CPU = torch.device("cpu")


class FakeTrainer:
    """The loss of step n is n."""

    def __init__(self, *, looks_ahead: bool = False) -> None:
        self.model = nn.Linear(1, 1)
        self.steps = 0
        self.looks_ahead = looks_ahead
        self.batches: list[tuple[Batch, Batch | None]] = []  # of each step, with the next one
        self.discarded = 0

    def step(
        self, batch: Batch, rate_factor: float, progress: float, next_batch: Batch | None
    ) -> torch.Tensor:
        self.steps += 1
        self.batches.append((batch, next_batch))
        return torch.tensor(float(self.steps))

    def discard_requests(self) -> None:
        self.discarded += 1

    def facts(self) -> dict[str, float]:
        return {}


class FakeLoader:
    """Three steps an epoch; step n of the training has n rows."""

    plan = SimpleNamespace(steps=3)

    def batches(self, epochs: int, first_step: int) -> Iterator[Batch]:
        empty = torch.zeros(0)
        for step in range(first_step, epochs * self.plan.steps):
            yield Batch(empty, empty, empty, empty, global_weight=step + 1)


def fit(*callbacks: Callback, epochs: int = 1) -> TrainingResult:
    trainer, loader = cast(Trainer, FakeTrainer()), cast(Loader, FakeLoader())
    return TrainingLoop(trainer, Train(epochs=epochs), CPU, callbacks).fit(loader)


@pytest.mark.parametrize("last_step", [1, 4, None])
def test_a_trainer_that_looks_ahead_gets_the_batch_of_the_next_step(last_step: int | None) -> None:
    """The same object that the next step gets; and what was announced in vain is discarded."""
    trainer = FakeTrainer(looks_ahead=True)
    callbacks = [StopAtStep(last_step)]
    loader = cast(Loader, FakeLoader())
    result = TrainingLoop(cast(Trainer, trainer), Train(epochs=2), CPU, callbacks).fit(loader)
    assert result.steps == len(trainer.batches) == (last_step or 6)
    assert [batch.global_weight for batch, _ in trainer.batches] == list(range(1, result.steps + 1))
    for (_, announced), (batch, _) in pairwise(trainer.batches):
        assert announced is batch
    assert (trainer.batches[-1][1] is None) == (last_step is None)
    assert trainer.discarded == 1


def test_other_trainers_get_one_batch_at_a_time() -> None:
    trainer = FakeTrainer()
    loader = cast(Loader, FakeLoader())
    TrainingLoop(cast(Trainer, trainer), Train(epochs=1), CPU, []).fit(loader)
    assert [next_batch for _, next_batch in trainer.batches] == [None] * 3


class Recorder(Callback):
    """Records the hooks that are called. An entry is due after step 2."""

    def __init__(self, failing_step: int = 0) -> None:
        self.calls: list[str] = []
        self._failing_step = failing_step

    def on_train_start(self, state: TrainingState) -> None:
        self.calls.append("train start")

    def on_step_start(self, state: TrainingState) -> None:
        self.calls.append(f"start {state.step}")

    def on_step_end(self, state: TrainingState, result: StepResult) -> None:
        self.calls.append(f"end {state.step}")
        if state.step == self._failing_step:
            raise KeyError(state.step)

    def is_entry_due(self, state: TrainingState) -> bool:
        return state.step == 2

    def fill_entry(self, state: TrainingState, entry: dict[str, Any]) -> None:
        self.calls.append(f"fill {entry['step']}, {len(state.history)} before")
        entry["value"] = 7

    def on_entry(self, state: TrainingState, entry: Mapping[str, Any]) -> None:
        self.calls.append(f"entry {entry['value']}, {len(state.history)} with it")

    def on_step_complete(self, state: TrainingState) -> None:
        self.calls.append(f"complete {state.step}")

    def on_train_end(self, state: TrainingState) -> None:
        self.calls.append("train end")

    def teardown(self) -> None:
        self.calls.append("teardown")


def test_hooks_are_called_in_order() -> None:
    recorder = Recorder()
    result = fit(recorder)
    assert recorder.calls == [
        "train start",
        *("start 1", "end 1", "complete 1"),
        *("start 2", "end 2", "fill 2, 0 before", "entry 7, 1 with it", "complete 2"),
        *("start 3", "end 3", "complete 3"),
        *("teardown", "train end"),
    ]
    assert (result.steps, result.stopped) == (3, None)
    assert result.history == [{"step": 2, "epoch": 0, "learning_rate": Train().learning_rate, "value": 7}]


def test_an_error_calls_teardown_of_all_callbacks_and_no_train_end() -> None:
    failing, other = Recorder(failing_step=2), Recorder()
    with pytest.raises(KeyError):
        fit(other, failing)
    assert failing.calls[-2:] == ["end 2", "teardown"]
    assert other.calls[-2:] == ["end 2", "teardown"]


def test_the_meter_averages_losses_by_rows_since_the_last_entry() -> None:
    history = fit(Meter(CPU, every_steps=4), epochs=2).history
    assert [entry["step"] for entry in history] == [4, 6]
    assert history[0]["loss"] == pytest.approx((1 + 4 + 9 + 16) / (1 + 2 + 3 + 4))
    assert history[1]["loss"] == pytest.approx((25 + 36) / (5 + 6))


def test_a_validation_adds_an_entry_and_may_end_the_training() -> None:
    aucs = iter([0.6, 0.9])

    def evaluate() -> dict[str, float]:
        return {"auc": next(aucs), "log_loss": 0.5, "normalized_entropy": 0.9, "rows": 8}

    rule = StopAt.model_validate({"metric": "auc", "value": 0.8})
    result = fit(Meter(CPU, 5), Validation(evaluate, every_steps=2), EarlyStopping(rule), epochs=4)
    assert [(entry["step"], entry["validation"]["auc"]) for entry in result.history] == [(2, 0.6), (4, 0.9)]
    assert "rows" not in result.history[0]["validation"]
    assert result.steps == 4
    assert result.stopped == "auc 0.90000 has reached the target of 0.8"


class FakeCheckpoints:
    """Restores a position and records the saved ones, with the step whose checkpoint is kept."""

    def __init__(self, position: Position | None = None) -> None:
        self.position = position
        self.saved: list[Position] = []
        self.best_steps: list[int | None] = []

    def restore(self, trainer: Trainer) -> Position | None:
        return self.position

    def save(self, trainer: Trainer, position: Position, best_step: int | None) -> None:
        self.saved.append(position)
        self.best_steps.append(best_step)

    def space_problem(self, trainer: Trainer) -> str | None:
        return None


def save_every_two(checkpoints: FakeCheckpoints, calls: list[str]) -> SaveCheckpoints:
    return SaveCheckpoints(
        cast(Checkpoints, checkpoints), 2, lambda: calls.append("before"), lambda: calls.append("after")
    )


def test_checkpoints_are_saved_with_their_position() -> None:
    checkpoints, calls = FakeCheckpoints(), list[str]()
    fit(save_every_two(checkpoints, calls), Recorder(), epochs=2)
    assert [position.step for position in checkpoints.saved] == [2, 4, 6]
    assert calls == ["before", "after"] * 3
    assert len(checkpoints.saved[0].history) == 1, "the entry of a step is in its checkpoint"


def test_a_training_resumes_after_its_checkpoint() -> None:
    restored = Position(5, 100.0, [{"step": 2}])
    recorder = Recorder()
    result = fit(save_every_two(FakeCheckpoints(restored), []), recorder, epochs=2)
    assert recorder.calls[1:4] == ["start 6", "end 6", "complete 6"]
    assert (result.steps, result.history) == (6, [{"step": 2}])
    assert 100 <= result.seconds < 160


def test_a_training_that_had_ended_before_it_was_killed_does_no_step() -> None:
    measured = {"step": 2, "validation": {"auc": 0.9}}
    checkpoints = save_every_two(FakeCheckpoints(Position(2, 1.0, [measured])), [])
    rule = StopAt.model_validate({"metric": "auc", "value": 0.8})
    result = fit(checkpoints, EarlyStopping(rule))
    assert (result.steps, result.history) == (2, [measured])
    assert result.stopped is not None


def evaluated(step: int, auc: float | None) -> dict[str, Any]:
    return {"step": step, "validation": {"auc": auc, "log_loss": 0.5, "normalized_entropy": 0.9}}


@pytest.mark.parametrize(
    "restored, aucs, best_steps",
    [
        ([], [None, 0.6, 0.6, 0.5, 0.7, 0.1], [None, 2, 2, 2, 5]),
        ([{"step": 1}, evaluated(2, 0.6)], [0.6, 0.7, 0.5], [2, 4, 4]),
        ([evaluated(1, 0.8), evaluated(2, 0.6)], [0.7, None, 0.8], [1, 1, 1]),
    ],
)
def test_a_checkpoint_is_kept_for_the_first_step_with_the_best_value(
    restored: list[dict[str, Any]], aucs: list[float | None], best_steps: list[int | None]
) -> None:
    """Also after a resumption. Steps with undefined and with equal values do not count."""
    values = iter(aucs)
    validation = Validation(lambda: evaluated(0, next(values))["validation"], every_steps=1)
    checkpoints = FakeCheckpoints(Position(restored[-1]["step"], 1.0, restored) if restored else None)
    saving = SaveCheckpoints(cast(Checkpoints, checkpoints), 1, lambda: None, best_of="auc")
    fit(saving, validation, epochs=2)
    assert checkpoints.best_steps[: len(best_steps)] == best_steps


class CountedEntry(dict[str, Any]):
    """An entry of a history that counts how often it is read."""

    reads = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.reads += 1
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.reads += 1
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.reads += 1
        return super().__contains__(key)


@pytest.mark.parametrize("epochs", [2, 40])
def test_steps_do_not_read_the_whole_history(epochs: int) -> None:
    """With 500,000 steps, reading all entries in each step took more time than training."""
    entries = [CountedEntry({"step": 1}), CountedEntry({"step": 2})]
    checkpoints = FakeCheckpoints(Position(2, 1.0, entries))
    saving = SaveCheckpoints(cast(Checkpoints, checkpoints), 0, lambda: None, best_of="auc")
    rule = StopAt.model_validate({"metric": "auc", "value": 0.8})
    pruning = Prune(PruningRule("auc", {}))
    fit(saving, Meter(CPU, every_steps=1), EarlyStopping(rule), pruning, epochs=epochs)
    assert max(entry.reads for entry in entries) <= 6
