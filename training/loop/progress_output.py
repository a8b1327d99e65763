"""Callbacks that measure a training run, show its progress, and record its steps with torch.profiler."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from conf.types import Profile
from storage import file_io
from training.loop.training_loop import Callback, StepResult, TrainingState, is_due
from training.progress import Report

log = logging.getLogger("nightrank.training")
# If the driver shows the steps, this logger is disabled in the ranks.
steps_log = logging.getLogger("nightrank.training.steps")


class LogLines(Callback):
    """Logs a line for each history entry, for each validation, and for an early end of the training."""

    def on_entry(self, state: TrainingState, entry: Mapping[str, Any]) -> None:
        """Logs loss, speed, waiting time, the share of hot lookups, and the metrics of a validation."""
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
        """Adds labels to a history entry, and sends it to the driver."""
        labels = {
            "training": self._architecture,
            "steps": state.total_steps,
            "batch_rows": self._global_batch_size,
        }
        self._report({**labels, **entry})


# The code below measures a training run between two entries of its history: loss, speed, and time spent
# waiting for data.


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
        self._loader_wait_s = 0.0  # the value of `state.loader_wait_s` at the last entry
        self._restart()

    def _restart(self) -> None:
        self._loss_sum = torch.zeros((), device=self._device)
        self._rows = 0.0
        self._since = time.perf_counter()

    def on_train_start(self, state: TrainingState) -> None:
        """Starts to measure the speed of the training."""
        self._restart()

    def on_step_end(self, state: TrainingState, result: StepResult) -> None:
        """Adds the loss and the number of rows of this step's global batch to the sums."""
        rows = float(result.batch.global_weight)  # in a batch of the loader, this is the number of rows
        self._loss_sum += result.loss * rows
        self._rows += rows

    def is_entry_due(self, state: TrainingState) -> bool:
        """Returns True every `every_steps` steps and after the last step."""
        return is_due(state.step, self._every_steps) or state.step == state.total_steps

    def fill_entry(self, state: TrainingState, entry: dict[str, Any]) -> None:
        """Adds `loss`, `rows_per_s`, `loader_wait_share` and the values of `Trainer.facts` to the entry.

        `loss`, `rows_per_s` and `loader_wait_share` are computed over the steps since the previous entry.
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


# The code below records steps of a training run with torch.profiler, as a trace for chrome://tracing or
# ui.perfetto.dev.


class StepProfiler(Callback):
    """Records the steps that `train.profile` selects. The first step of a training run is step 1.

    If the training ends before the last selected step, the trace has the steps that were done. If `config` is
    None, nothing is recorded. Ranks other than 0 record only if `every_rank` is set.

    Args:
        config: the steps to record, and the ranks that record them; None: nothing is recorded.
        folder: folder of the traces, one file per rank: `rank<n>-steps<first>-<last>.json.gz`.
        rank: the rank of this process.
    """

    def __init__(self, config: Profile | None, folder: str, rank: int) -> None:
        self._config = config if config and (rank == 0 or config.every_rank) else None
        self._folder = folder
        self._rank = rank
        self._last_step = 0
        self._running: profile | None = None

    def on_step_start(self, state: TrainingState) -> None:
        """Starts recording before the first configured step."""
        if self._config and state.step == self._config.first_step:
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            running = profile(activities=activities, record_shapes=True)
            running.start()
            self._running = running

    def on_step_end(self, state: TrainingState, result: StepResult) -> None:
        """Writes the trace after the last configured step."""
        self._last_step = state.step
        if self._config and state.step == self._config.first_step + self._config.steps - 1:
            self.teardown()

    def teardown(self) -> None:
        """Writes the trace if steps are being recorded."""
        if self._running is None or self._config is None:
            return
        running, self._running = self._running, None
        running.stop()
        path = f"{self._folder}/rank{self._rank}-steps{self._config.first_step}-{self._last_step}.json.gz"
        _write_trace(running, path)
        log.info(
            "the trace of steps %d to %d is in the file %s", self._config.first_step, self._last_step, path
        )


def _write_trace(running: profile, path: str) -> None:
    """Writes a trace to a file of the lake. torch can only write to local files."""
    files, inner = file_io.filesystem(path)
    if file_io.is_local(path):
        Path(inner).parent.mkdir(parents=True, exist_ok=True)
        running.export_chrome_trace(inner)
        return
    with TemporaryDirectory() as scratch:
        local = Path(scratch, Path(inner).name)
        running.export_chrome_trace(str(local))
        with local.open("rb") as trace, files.open_output_stream(inner, compression=None) as upload:
            shutil.copyfileobj(trace, upload)
