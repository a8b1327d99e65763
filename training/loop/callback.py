"""Callbacks of the training loop: the hooks that the loop calls, and the state that it passes to them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from training.data.batch import Batch
from training.loop.train_step import Trainer


@dataclass
class TrainingState:
    """The progress of a training, which the loop passes to each callback.

    Callbacks read this state. Callbacks that restore or end a training also change it.

    Attributes:
        trainer: the model and the state of its optimizers.
        steps_per_epoch: number of global batches in one epoch.
        total_steps: number of global batches in all epochs.
        step: number of steps done. In `on_step_start`, this number already includes the step that begins.
        history: all history entries so far (loss, speed and metrics at some steps), oldest first.
        stopped: the reason why the training ends before its last step; None while it continues.
        earlier_s: seconds that earlier attempts at this training spent in their steps.
        started_at: value of `time.perf_counter()` when this attempt began its steps.
        loader_wait_s: seconds that this attempt has waited for batches.
    """

    trainer: Trainer
    steps_per_epoch: int
    total_steps: int
    step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    stopped: str | None = None
    earlier_s: float = 0.0
    started_at: float = field(default_factory=time.perf_counter)
    loader_wait_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds spent in the steps of all attempts."""
        return self.earlier_s + time.perf_counter() - self.started_at


@dataclass(frozen=True)
class StepResult:
    """The result of one step.

    Attributes:
        batch: this rank's rows of the step, unchanged from the loader.
        loss: mean loss of the global batch, a scalar on the training's device; equal on all ranks.
    """

    batch: Batch
    loss: Tensor


class Callback:
    """Base class of objects that act at fixed points of a training.

    The hooks of this class do nothing. A subclass overrides the hooks that it needs.

    If a callback calls collectives, all ranks must use this callback, and it must call the collectives at the
    same steps on all ranks.
    """

    def on_train_start(self, state: TrainingState) -> None:
        """Called before the first batch is read; may restore the state of an earlier attempt."""

    def on_step_start(self, state: TrainingState) -> None:
        """Called before each step."""

    def on_step_end(self, state: TrainingState, result: StepResult) -> None:
        """Called after each step."""

    def is_entry_due(self, state: TrainingState) -> bool:
        """Returns whether to add an entry to the history after this step. All ranks must return the same."""
        return False

    def fill_entry(self, state: TrainingState, entry: dict[str, Any]) -> None:
        """Adds this callback's values to a new entry of the history."""

    def on_entry(self, state: TrainingState, entry: Mapping[str, Any]) -> None:
        """Called when an entry is complete and has been added to the history."""

    def on_step_complete(self, state: TrainingState) -> None:
        """Called at the end of each step, after the step's history entry, if there is one."""

    def on_train_end(self, state: TrainingState) -> None:
        """Called once after the last step, but not after an error."""

    def teardown(self) -> None:
        """Called once when the loop is left, also after an error."""


def is_due(step: int, every: int) -> bool:
    """Returns whether an action with a period of `every` steps is due after this step; False if it is 0."""
    return every > 0 and step % every == 0
