"""Measures a training between two entries of its history: loss, speed, and time spent waiting for data."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from training.loop.callback import Callback, StepResult, TrainingState, is_due


class Meter(Callback):
    """Adds an entry with loss, speed and waiting time to the history.

    An entry is added every `every_steps` steps, and after the last step. Of all methods, only `fill_entry`
    waits for the device.

    Args:
        device: the device of the losses.
        every_steps: steps between two entries.
    """

    def __init__(self, device: torch.device, every_steps: int) -> None:
        self._device = device
        self._every_steps = every_steps
        self._loader_wait_s = 0.0  # waiting time until the last entry
        self._restart()

    def _restart(self) -> None:
        self._loss_sum = torch.zeros((), device=self._device)
        self._rows = 0.0
        self._since = time.perf_counter()

    def on_train_start(self, state: TrainingState) -> None:
        """Starts the clock."""
        self._restart()

    def on_step_end(self, state: TrainingState, result: StepResult) -> None:
        """Adds the loss and the number of rows of this step's global batch to the sums."""
        rows = float(result.batch.global_weight)  # of the loader's batch: the number of rows
        self._loss_sum += result.loss * rows
        self._rows += rows

    def is_entry_due(self, state: TrainingState) -> bool:
        """Returns True every `every_steps` steps and after the last step."""
        return is_due(state.step, self._every_steps) or state.step == state.total_steps

    def fill_entry(self, state: TrainingState, entry: dict[str, Any]) -> None:
        """Adds `loss`, `rows_per_s` and `loader_wait_share` to the entry, and the values of `Trainer.facts`.

        The first three are computed over the steps since the previous entry.
        """
        loss = float(self._loss_sum) / self._rows
        seconds = time.perf_counter() - self._since
        entry |= {
            "loss": loss,
            "rows_per_s": round(self._rows / seconds),
            "loader_wait_share": round((state.loader_wait_s - self._loader_wait_s) / seconds, 4),
            **state.trainer.facts(),
        }
        self._loader_wait_s = state.loader_wait_s
        self._restart()

    def on_entry(self, state: TrainingState, entry: Mapping[str, Any]) -> None:
        """Restarts the clock after a validation, because validation time is not part of the speed."""
        if "validation" in entry:
            self._restart()
