"""Callbacks of the training loop: the hooks it calls, and the state it passes to them."""

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
    """How far a training is. Callbacks read it; those that restore or end a training also change it.

    Attributes:
        trainer: the model and the state of its optimizers.
        steps_per_epoch: global batches in one epoch.
        total_steps: global batches in all epochs.
        step: steps done. In `on_step_start` it already counts the step that begins.
        history: the entries so far, oldest first.
        stopped: why the training ends before its last step; None while it continues.
        earlier_s: seconds that earlier attempts at this training spent in their steps.
        started_at: `time.perf_counter()` when this attempt began with its steps.
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
        """Seconds spent in all attempts."""
        return self.earlier_s + time.perf_counter() - self.started_at


@dataclass(frozen=True)
class StepResult:
    """One step that was done.

    Attributes:
        batch: this rank's rows of the step, as the loader returned them.
        loss: mean loss of the global batch, a scalar on the training's device; equal on all ranks.
    """

    batch: Batch
    loss: Tensor


class Callback:
    """Acts at fixed points of a training. The hooks do nothing here; a subclass overrides those it needs.

    A callback that calls collectives must be used on all ranks, and must call them at the same steps.
    """

    def on_train_start(self, state: TrainingState) -> None:
        """Called before the first batch is read; may restore the state of an earlier attempt."""

    def on_step_start(self, state: TrainingState) -> None:
        """Called before each step."""

    def on_step_end(self, state: TrainingState, result: StepResult) -> None:
        """Called after each step."""

    def is_entry_due(self, state: TrainingState) -> bool:
        """Whether the history gets an entry after this step. Must be the same on all ranks."""
        return False

    def fill_entry(self, state: TrainingState, entry: dict[str, Any]) -> None:
        """Adds this callback's values to a new entry of the history."""

    def on_entry(self, state: TrainingState, entry: Mapping[str, Any]) -> None:
        """Called when an entry is complete and in the history."""

    def on_step_complete(self, state: TrainingState) -> None:
        """Called last for each step, after its entry where it has one."""

    def on_train_end(self, state: TrainingState) -> None:
        """Called once after the last step; not after an error."""

    def teardown(self) -> None:
        """Called once when the loop is left, also after an error."""


def is_due(step: int, every: int) -> bool:
    """Whether something done every `every` steps is done after this one; never if `every` is 0."""
    return every > 0 and step % every == 0
