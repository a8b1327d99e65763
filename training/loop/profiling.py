"""Records some steps of a training with torch.profiler, into a trace for a browser (chrome://tracing, ui.perfetto.dev)."""

from __future__ import annotations

import logging
from pathlib import Path
from types import TracebackType

import torch
from torch.profiler import ProfilerActivity, profile

from conf.types import Profile

log = logging.getLogger("nightrank.training")


class StepProfiler:
    """Records the steps it is configured for. Use it as a context manager around the loop; steps count from 1.

    A training that ends sooner leaves a trace of the steps that were made. Nothing is recorded without a configuration, nor
    on ranks other than 0 unless it says so.

    Args:
        folder: where traces go, one file a rank: `rank<n>-steps<first>-<last>.json.gz`.
    """

    def __init__(self, config: Profile | None, folder: str, rank: int) -> None:
        self._config = config if config and (rank == 0 or config.every_rank) else None
        self._folder = Path(folder)
        self._rank = rank
        self._last = 0
        self._running: profile | None = None

    def __enter__(self) -> StepProfiler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def before(self, step: int) -> None:
        """Begins to record if this is the first of the steps."""
        if self._config and step == self._config.first_step:
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            running = profile(activities=activities, record_shapes=True)
            running.start()
            self._running = running

    def after(self, step: int) -> None:
        """Writes the trace if this was the last of the steps."""
        self._last = step
        if self._config and step == self._config.first_step + self._config.steps - 1:
            self._stop()

    def _stop(self) -> None:
        if self._running is None or self._config is None:
            return
        running, self._running = self._running, None
        running.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"rank{self._rank}-steps{self._config.first_step}-{self._last}.json.gz"
        running.export_chrome_trace(str(path))
        log.info("the trace of steps %d to %d is %s", self._config.first_step, self._last, path)
