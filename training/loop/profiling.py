"""Records steps of a training with torch.profiler, as a trace for chrome://tracing or ui.perfetto.dev."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from conf.types import Profile
from training.loop.callback import Callback, StepResult, TrainingState

log = logging.getLogger("nightrank.training")


class StepProfiler(Callback):
    """Records the steps that `train.profile` selects. The first step of a training is step 1.

    If the training ends before the last selected step, the trace has the steps that were done. Without a
    configuration, nothing is recorded. Ranks other than 0 record only if `every_rank` is set.

    Args:
        config: says which steps to record on which ranks; None records nothing.
        folder: folder of the traces, one file per rank: `rank<n>-steps<first>-<last>.json.gz`.
        rank: the rank of this process.
    """

    def __init__(self, config: Profile | None, folder: str, rank: int) -> None:
        self._config = config if config and (rank == 0 or config.every_rank) else None
        self._folder = Path(folder)
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
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"rank{self._rank}-steps{self._config.first_step}-{self._last_step}.json.gz"
        running.export_chrome_trace(str(path))
        log.info("the trace of steps %d to %d is %s", self._config.first_step, self._last_step, path)
