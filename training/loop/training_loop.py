"""The training loop of one model on one rank: epochs over a split, and callbacks around each step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from conf.types import Train
from training.data.batch import Batch
from training.data.loader import Loader
from training.data.prefetch import Prefetch
from training.loop.callback import Callback, StepResult, TrainingState
from training.loop.learning_rate import learning_rate_factor
from training.loop.threads_of_model import threads_of_model
from training.loop.train_step import Trainer


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training.

    Attributes:
        history: one entry every `log_every_steps` steps, one entry for each step with a validation, and one
            entry for the last step. `loss` and `loader_wait_share` are means since the previous entry.
            `validation` contains the metrics of a validation.
        steps: number of steps done.
        seconds: time spent in these steps, in all attempts at this training.
        stopped: the reason why the training ended early; None if it did not.
    """

    history: list[dict[str, Any]]
    steps: int
    seconds: float
    stopped: str | None


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
        return TrainingResult(state.history, state.step, round(state.seconds, 3), state.stopped)

    def _with_next(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Batch, Batch | None]]:
        """Yields each batch, the same batch on the device, and the next one on the device.

        The last is None at the end of the training, or if steps do not need it.
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
