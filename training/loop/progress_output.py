"""Shows the progress of a training: log lines, and entries for the driver."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from training.distributed.progress import Report
from training.loop.callback import Callback, TrainingState

log = logging.getLogger("nightrank.training")
steps_log = logging.getLogger("nightrank.training.steps")  # disabled if the driver shows the steps


class LogLines(Callback):
    """Logs a line for each history entry, for each validation, and for an early end of the training."""

    def on_entry(self, state: TrainingState, entry: Mapping[str, Any]) -> None:
        """Logs loss, speed and waiting time, hot lookups, and the metrics of a validation."""
        steps_log.info(
            "step %d of %d: loss %.5f, %d rows/s, %.0f%% waiting for data, learning rate %.3g",
            entry["step"],
            state.total_steps,
            entry["loss"],
            entry["rows_per_s"],
            100 * entry["loader_wait_share"],
            entry["learning_rate"],
        )
        if "hot_share" in entry:
            steps_log.info(
                "step %d of %d: %.2f%% of lookups read rows on the device",
                entry["step"],
                state.total_steps,
                100 * entry["hot_share"],
            )
        if "validation" in entry:
            defined = {name: value for name, value in entry["validation"].items() if value is not None}
            metrics = ", ".join(f"{name} {value:.5f}" for name, value in defined.items())
            steps_log.info(
                "step %d of %d: on the validation split %s", entry["step"], state.total_steps, metrics
            )

    def on_train_end(self, state: TrainingState) -> None:
        """Logs why the training ended early, if it did."""
        if state.stopped:
            log.info("ended after step %d of %d: %s", state.step, state.total_steps, state.stopped)


class ReportProgress(Callback):
    """Sends every entry of the history to the driver.

    Args:
        report: called with each entry, to which the labels `training`, `steps` and `batch_rows` were added.
        architecture: the value of the label `training`.
        global_batch_size: the value of the label `batch_rows`.
    """

    def __init__(self, report: Report, architecture: str, global_batch_size: int) -> None:
        self._report = report
        self._architecture = architecture
        self._global_batch_size = global_batch_size

    def on_entry(self, state: TrainingState, entry: Mapping[str, Any]) -> None:
        """Sends the entry with its labels."""
        labels = {
            "training": self._architecture,
            "steps": state.total_steps,
            "batch_rows": self._global_batch_size,
        }
        self._report({**labels, **entry})
