"""Shows the progress of a run on a terminal: one line per stage, with the seconds of the running stage."""

from __future__ import annotations

import sys
from typing import TextIO

from conf.printable import printable, printable_lines
from reporting.terminal.live_line import LiveLine

_JOB_WIDTH = 23  # measure_recommendations


class StageProgress:
    """Writes one line per stage. On a terminal, the line of the running stage also shows its seconds."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._clock = LiveLine(self._stream)
        self._shown_s = -1

    def write(self, text: str = "") -> None:
        """Writes lines of text, and escapes control characters, because the text may contain log values."""
        self._clock.erase()
        self._shown_s = -1
        print(printable_lines(text), file=self._stream, flush=True)

    def tick(self, job: str, seconds: float) -> None:
        """Shows the seconds of the running stage. The caller calls this method several times per second."""
        if int(seconds) != self._shown_s:
            self._shown_s = int(seconds)
            self._clock.draw(_line(job, "running", self._shown_s, ""))

    def finished(self, job: str, state: str, seconds: float, remark: str) -> None:
        """Writes the line of a stage that has ended."""
        self.write(_line(job, state, seconds, printable(remark)))


def _line(job: str, state: str, seconds: float, remark: str) -> str:
    """Returns the line of a stage, in columns.

    An example, without the padding, is `train_model  done  1.4 s  30 steps`.
    """
    return f"  {job:<{_JOB_WIDTH}}  {state:<7} {seconds:>6.1f} s  {remark}".rstrip()
