"""What a training says of itself every so many steps: loss, speed and waiting, in the history and in the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

steps_log = logging.getLogger("nightrank.training.steps")  # silenced where the driver shows the steps


class Meter:
    """Loss, speed and waiting since it was last read. Reading is the only moment that waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._waited_s = 0.0
        self.restart()

    def restart(self) -> None:
        """Begins to count and to time anew."""
        self._loss = torch.zeros((), device=self._device)
        self._rows = 0
        self._since = time.perf_counter()

    def add(self, loss: Tensor, rows: int) -> None:
        """Counts a step of this mean loss over so many rows of all ranks."""
        self._loss += loss * rows
        self._rows += rows

    def take(self, waited_s: float) -> dict[str, float]:
        """`loss`, `rows_per_s` and `loader_wait_share` since the last call.

        Args:
            waited_s: seconds waited for data since the training began.
        """
        loss = float(self._loss) / self._rows
        seconds = time.perf_counter() - self._since
        entry = {
            "loss": loss,
            "rows_per_s": round(self._rows / seconds),
            "loader_wait_share": round((waited_s - self._waited_s) / seconds, 4),
        }
        self._waited_s = waited_s
        self.restart()
        return entry


def log_entry(entry: Mapping[str, Any], steps: int) -> None:
    """One line for an entry of the history, and one more where the model was measured."""
    steps_log.info(
        "step %d of %d: loss %.5f, %d rows/s, %.0f%% waiting for data, learning rate %.3g",
        entry["step"],
        steps,
        entry["loss"],
        entry["rows_per_s"],
        100 * entry["loader_wait_share"],
        entry["learning_rate"],
    )
    if "validation" in entry:
        found = {name: value for name, value in entry["validation"].items() if value is not None}
        measures = ", ".join(f"{name} {value:.5f}" for name, value in found.items())
        steps_log.info("step %d of %d: on the validation split %s", entry["step"], steps, measures)
