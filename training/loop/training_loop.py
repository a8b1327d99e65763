"""The training loop of one model on one rank: epochs, callbacks around each step, the learning rate."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from conf.types import Train
from training.data.batch import Batch
from training.data.loader import Loader
from training.data.prefetch import Prefetch
from training.device import torch_threads
from training.embeddings.table import tables_of
from training.loop.train_step import Trainer


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training run.

    Attributes:
        history: one entry every `log_every_steps` steps, one entry for each step with a validation, and one
            entry for the last step. `loss` and `loader_wait_share` are means since the previous entry.
            `validation` contains the metrics of a validation.
        steps: number of steps done.
        seconds: time spent in these steps, in all attempts at this training run.
        stopped: the reason why the training ended early; None if it did not.
        pruned: whether the training ended early because it is a bad trial of a search. A pruned training run
            has no model.
    """

    history: list[dict[str, Any]]
    steps: int
    seconds: float
    stopped: str | None
    pruned: bool = False


class TrainingLoop:
    """Trains a trainer's model in place.

    Args:
        trainer: the model and the state of its optimizers.
        train: the settings for epochs and learning rates.
        device: the device of the model.
        callbacks: called in this order at each hook; see `Callback`.
    """

    def __init__(
        self, trainer: Trainer, train: Train, device: torch.device, callbacks: Sequence[Callback]
    ) -> None:
        self._trainer = trainer
        self._train = train
        self._device = device
        self._callbacks = callbacks

    def fit(self, loader: Loader) -> TrainingResult:
        """Trains for `train.epochs` epochs over the loader's rows, or until a callback ends the training.

        Raises:
            DataError: a file does not match its manifest, or the loss is not finite.
        """
        steps = loader.plan.steps
        state = TrainingState(self._trainer, steps, steps * self._train.epochs)
        for callback in self._callbacks:
            callback.on_train_start(state)
        with ExitStack() as stack:
            stack.enter_context(threads_of_model(self._trainer.model))
            batches = stack.enter_context(Prefetch(loader.batches(self._train.epochs, state.step)))
            for callback in self._callbacks:
                stack.callback(callback.teardown)
            self._trainer.model.train()
            for batch, rows, next_rows in self._with_next(batches):
                if state.stopped:
                    break
                state.loader_wait_s = batches.wait_s
                self._step(state, batch, rows, next_rows)
            self._trainer.discard_requests()
        for callback in self._callbacks:
            callback.on_train_end(state)
        return TrainingResult(state.history, state.step, round(state.seconds, 3), state.stopped, state.pruned)

    def _with_next(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Batch, Batch | None]]:
        """Yields each batch of the loader, its copy on the device, and the next batch's copy on the device.

        The third value is None at the end of the training, or if steps do not need it.
        """
        moved = ((batch, batch.to(self._device)) for batch in batches)
        if not self._trainer.looks_ahead:
            yield from ((*pair, None) for pair in moved)
            return
        pair = next(moved, None)
        while pair is not None:
            next_pair = next(moved, None)
            yield (*pair, next_pair[1] if next_pair else None)
            pair = next_pair

    def _step(self, state: TrainingState, batch: Batch, rows: Batch, next_rows: Batch | None) -> None:
        """Does one step with a batch of the loader; `rows` is this batch on the device."""
        factor = learning_rate_factor(state.step, state.total_steps, self._train)
        progress = state.step / state.total_steps
        state.step += 1
        for callback in self._callbacks:
            callback.on_step_start(state)
        result = StepResult(batch, self._trainer.step(rows, factor, progress, next_rows))
        for callback in self._callbacks:
            callback.on_step_end(state, result)
        if any(callback.is_entry_due(state) for callback in self._callbacks):
            self._add_entry(state, self._train.learning_rate * factor)
        for callback in self._callbacks:
            callback.on_step_complete(state)

    def _add_entry(self, state: TrainingState, learning_rate: float) -> None:
        entry: dict[str, Any] = {
            "step": state.step,
            "epoch": (state.step - 1) // state.steps_per_epoch,
            "learning_rate": learning_rate,
        }
        for callback in self._callbacks:
            callback.fill_entry(state, entry)
        state.history.append(entry)
        for callback in self._callbacks:
            callback.on_entry(state, entry)


# The classes below define callbacks: the hooks that the training loop calls, and the state that it passes to
# them.


@dataclass
class TrainingState:
    """The progress of a training run, which the loop passes to each callback.

    Callbacks read this state. Callbacks that restore or end a training run also change it.

    Attributes:
        trainer: the model and the state of its optimizers.
        steps_per_epoch: number of global batches in one epoch.
        total_steps: number of global batches in all epochs.
        step: number of steps done. In `on_step_start`, this number already includes the step that begins.
        history: all history entries so far (loss, speed and metrics at some steps), oldest first.
        stopped: the reason why the training ends before its last step; None while it continues.
        pruned: whether the training ends because it is a bad trial of a search.
        earlier_s: seconds that earlier attempts at this training run spent in their steps.
        started_at: value of `time.perf_counter()` when this attempt began its steps.
        loader_wait_s: seconds that this attempt has waited for batches.
    """

    trainer: Trainer
    steps_per_epoch: int
    total_steps: int
    step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    stopped: str | None = None
    pruned: bool = False
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
    """Base class of objects that act at fixed points of a training run.

    The hooks of this class do nothing. A subclass overrides the hooks that it needs.

    If a callback calls collectives, all ranks must use this callback, and the callback must call the
    collectives at the same steps on all ranks.
    """

    def on_train_start(self, state: TrainingState) -> None:
        """Called before the first batch is read. This hook may restore the state of an earlier attempt."""

    def on_step_start(self, state: TrainingState) -> None:
        """Called before each step."""

    def on_step_end(self, state: TrainingState, result: StepResult) -> None:
        """Called after each step."""

    def is_entry_due(self, state: TrainingState) -> bool:
        """Returns whether to add an entry to the history after this step.

        All ranks must return the same value.
        """
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
    """Returns whether `step` is a multiple of `every`; False if `every` is 0, which means never."""
    return every > 0 and step % every == 0


# The code below chooses the number of threads with which a model is trained or measured on a CPU.

# A model with fewer weights than this number outside its tables, such as a logistic regression, has no matrix
# products.
_FEW_WEIGHTS = 1024


@contextmanager
def threads_of_model(model: nn.Module) -> Iterator[None]:
    """Makes torch use one thread if the model has so few weights that more threads would not be faster.

    In such a model, threads would wait for each other longer than they compute, and the loader needs the
    other cores. benchmarks/run.py trains such a model.
    """
    tables = {id(table.weight) for table in tables_of(model).values()}
    weights = sum(weight.numel() for weight in model.parameters() if id(weight) not in tables)
    with torch_threads(1 if weights < _FEW_WEIGHTS else torch.get_num_threads()):
        yield


# The code below computes the learning rate schedule: a factor that multiplies the configured learning rates.
#
# The factor does not depend on the number of ranks, because the rows of a global batch do not depend on
# it.


def learning_rate_factor(step: int, steps: int, train: Train) -> float:
    """Returns the factor of the learning rates in a step.

    Over the steps of a training run, the factor grows linearly (warm-up), is then constant, and then decays
    as a power. With `decay_power` 2 and `decay_end_factor` 0, this is the schedule of DLRM's authors.

    Args:
        step: number of steps done before this step, 0 in the first step.
        steps: number of steps of the complete training run.
        train: the settings. `warmup_share` and `decay_start_share` are shares of `steps`.
    """
    warmup = train.warmup_share * steps
    decay_start = train.decay_start_share * steps
    if step < warmup:
        return min((step + 1) / warmup, 1.0)
    if step < decay_start:
        return 1.0
    remaining = (steps - step) / max(steps - decay_start, 1.0)
    return train.decay_end_factor + (1 - train.decay_end_factor) * remaining**train.decay_power
