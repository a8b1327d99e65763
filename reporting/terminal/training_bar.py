"""Shows the progress of a training on the driver: a bar on a terminal, otherwise one line per log entry."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from shutil import get_terminal_size
from types import TracebackType
from typing import Any, TextIO

from reporting.terminal.live_line import LiveLine

log = logging.getLogger("nightrank.training")

_WIDTH = 24


class TrainingBar:
    """Shows the log entries of rank 0 during a training. Use it as a context manager.

    Leaving the context manager ends the line of the bar. An entry is a dictionary with these keys:

    - `training`: the architecture
    - `step`, `steps`: index of the current step, and number of all steps
    - `batch_rows`: number of rows per step
    - `loss`, `rows_per_s`, `loader_wait_share`: measured since the previous entry

    The time left is computed from `rows_per_s`. The step index may decrease: if an elastic training loses a
    rank, the training continues from its last checkpoint.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._bar = LiveLine(stream or sys.stderr)
        self._last: tuple[str, int] | None = None

    def __enter__(self) -> TrainingBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.end()

    def show(self, entry: Mapping[str, Any]) -> None:
        """Shows an entry. If the entry belongs to another training than the last one, a new line begins."""
        name, step = str(entry["training"]), int(entry["step"])
        if self._last and self._last[0] != name:
            self._bar.end()
        text = _line(entry)
        if self._last and self._last[0] == name and step <= self._last[1]:
            text += f"  (back from step {self._last[1]:,})"
        self._last = (name, step)
        if self._bar.is_terminal:
            done = _WIDTH * step // int(entry["steps"])
            line = f"  [{'#' * done}{'.' * (_WIDTH - done)}]  {text}"
            # On a narrow terminal, the figures are more useful than the bar.
            self._bar.draw(line if len(line) < get_terminal_size().columns else f"  {text}")
        else:
            log.info(text)


def _line(entry: Mapping[str, Any]) -> str:
    """Returns the figures of an entry as one line with columns."""
    step, steps = int(entry["step"]), int(entry["steps"])
    parts = [
        f"{step:>{len(f'{steps:,}')},}/{steps:,}",
        f"loss {entry['loss']:.5f}",
        f"{entry['rows_per_s']:,.0f} rows/s",
        f"{entry['loader_wait_share']:.0%} waiting",
        _time_left(entry, steps - step),
    ]
    return f"{entry['training']}  {'  '.join(parts)}"


def _time_left(entry: Mapping[str, Any], steps: int) -> str:
    """Returns, as text, the time that `steps` more steps take at the speed of the entry."""
    seconds = round(steps * entry["batch_rows"] / max(entry["rows_per_s"], 1))
    hours, minutes = seconds // 3600, seconds // 60 % 60
    clock = f"{hours}:{minutes:02}:{seconds % 60:02}" if hours else f"{minutes}:{seconds % 60:02}"
    return f"{clock} left"
