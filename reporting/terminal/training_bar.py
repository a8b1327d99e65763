"""How far a training is, on the driver: a bar where somebody watches, a log line an entry elsewhere."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TextIO

log = logging.getLogger("nightrank.training")

_WIDTH = 24


class TrainingBar:
    """Shows rank 0's log entries. Use it as a context manager: a bar's line must be ended.

    An entry says `training` (the architecture), `step` of `steps` of `batch_rows` each, and of the time since the entry
    before `loss`, `rows_per_s` and `loader_wait_share`; what is left is reckoned from that speed. Steps may go back: an elastic training that lost a
    rank goes on from its last checkpoint.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._drawn = False
        self._last: tuple[str, int] | None = None

    def __enter__(self) -> TrainingBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end_line()

    def show(self, entry: Mapping[str, Any]) -> None:
        """Draws an entry; another training than before starts a line of its own."""
        name, step = str(entry["training"]), int(entry["step"])
        if self._last and self._last[0] != name:
            self._end_line()
        text = _line(entry)
        if self._last and self._last[0] == name and step <= self._last[1]:
            text += f"  (back from step {self._last[1]:,})"
        self._last = (name, step)
        if not self._live:
            log.info(text)
            return
        done = _WIDTH * step // int(entry["steps"])
        self._stream.write(f"\r\x1b[K  [{'#' * done}{'.' * (_WIDTH - done)}]  {text}")
        self._stream.flush()
        self._drawn = True

    def _end_line(self) -> None:
        if self._drawn:
            self._stream.write("\n")
            self._stream.flush()
        self._drawn = False


def _line(entry: Mapping[str, Any]) -> str:
    step, steps = int(entry["step"]), int(entry["steps"])
    parts = [
        f"{step:>{len(f'{steps:,}')},}/{steps:,}",
        f"loss {entry['loss']:.5f}",
        f"{entry['rows_per_s']:,.0f} rows/s",
        f"{entry['loader_wait_share']:.0%} waiting",
        _left(entry, steps - step),
    ]
    return f"{entry['training']}  {'  '.join(parts)}"


def _left(entry: Mapping[str, Any], steps: int) -> str:
    seconds = round(steps * entry["batch_rows"] / max(entry["rows_per_s"], 1))
    hours, minutes = seconds // 3600, seconds // 60 % 60
    clock = f"{hours}:{minutes:02}:{seconds % 60:02}" if hours else f"{minutes}:{seconds % 60:02}"
    return f"{clock} left"
