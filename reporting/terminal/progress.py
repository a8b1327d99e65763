"""What stages look like on a terminal: one line each, a running clock only where somebody watches, aligned tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from conf.printable import printable, printable_lines

_JOB_WIDTH = 23  # measure_recommendations


class Progress:
    """Writes one line a stage. On a terminal the line of the running stage shows its seconds."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._live = self._stream.isatty()
        self._shown = -1

    def say(self, text: str = "") -> None:
        """Writes lines that may hold values from data."""
        self._clear()
        print(printable_lines(text), file=self._stream, flush=True)

    def tick(self, job: str, seconds: float) -> None:
        """Called several times a second while a stage runs."""
        if self._live and int(seconds) != self._shown:
            self._shown = int(seconds)
            self._stream.write(f"\r{_line(job, 'running', self._shown, '')}")
            self._stream.flush()

    def finished(self, job: str, state: str, seconds: float, remark: str) -> None:
        self.say(_line(job, state, seconds, printable(remark)))

    def _clear(self) -> None:
        if self._live and self._shown >= 0:
            self._stream.write(
                "\r\x1b[K"
            )  # the clock is shorter than most lines that replace it, longer than some
        self._shown = -1


def _line(job: str, state: str, seconds: float, remark: str) -> str:
    return f"  {job:<{_JOB_WIDTH}}  {state:<7} {seconds:>6.1f} s  {remark}".rstrip()


def text_table(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """An aligned table, indented by two; `right` holds the indices of right-aligned columns. Cells may come from data."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[index]) for row in (headers, *rows)) for index in range(len(headers))]

    def aligned(row: Sequence[str]) -> str:
        cells = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return f"  {'  '.join(cells)}".rstrip()

    rule = f"  {'  '.join('-' * width for width in widths)}"
    return "\n".join([aligned(headers), rule, *(aligned(row) for row in rows)])
