"""Shows progress lines, tables and bars on a terminal."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import get_terminal_size
from types import TracebackType
from typing import Any, TextIO

from conf.messages import counted, printable, printable_lines

# A line on a terminal that is redrawn while a job runs.


class LiveLine:
    """A line that each call of draw() replaces.

    If the stream is not a terminal, or is a terminal without control sequences (TERM=dumb), nothing is drawn.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn = False
        self.is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"

    def draw(self, text: str) -> None:
        """Replaces the text of the line.

        Text beyond the width of the terminal is truncated, because a terminal would wrap a longer line and
        could not erase it.
        """
        if self.is_terminal:
            text = text[: get_terminal_size().columns - 1]
            self._write(f"\r\x1b[K{text}")
            self._drawn = True

    def erase(self) -> None:
        """Erases the line. The next text replaces it."""
        if self._drawn:
            self._write("\r\x1b[K")
        self._drawn = False

    def end(self) -> None:
        """Ends the line and keeps its text. The next text begins on a new line."""
        if self._drawn:
            self._write("\n")
        self._drawn = False

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


# The class below shows the progress of a run: one line per stage, with the seconds of the running stage.

_JOB_WIDTH = 23  # length of the longest name, measure_recommendations
_MOST_WARNINGS = 5


# Seconds after which a log that is not a terminal gets its first line about a running stage. After each
# line, the time to the next one doubles, up to `_LONGEST_PAUSE_S`.
_FIRST_LINE_S, _LONGEST_PAUSE_S = 60.0, 600.0


class StageProgress:
    """Writes one line per stage.

    On a terminal, the line of the running stage also shows its seconds. Otherwise, a stage that runs for
    minutes gets further lines, so that a log shows that it is still running.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._clock = LiveLine(self._stream)
        self._shown_s = -1
        self._next_line_s = _FIRST_LINE_S

    def write(self, text: str = "") -> None:
        """Writes lines of text.

        Escapes control characters, because the text may contain values of the log.
        """
        self._clock.erase()
        self._shown_s = -1
        print(printable_lines(text), file=self._stream, flush=True)

    def tick(self, job: str, seconds: float, stage_log: Path | None = None) -> None:
        """Shows the seconds of the running stage, and the progress of its training.

        The caller calls this method several times per second.

        Args:
            job: the name of the stage.
            seconds: the seconds since it began.
            stage_log: the log of the stage, in which `TrainingBar` writes lines; None for no log.
        """
        if int(seconds) == self._shown_s:
            return
        self._shown_s = int(seconds)
        if self._clock.is_terminal:
            self._clock.draw(_running_line(job, self._shown_s, stage_log))
        elif seconds >= self._next_line_s:
            self.write(_running_line(job, seconds, stage_log))
            self._next_line_s = seconds + min(seconds, _LONGEST_PAUSE_S)

    def finished(
        self, job: str, state: str, seconds: float, remark: str, warnings: Sequence[str] = ()
    ) -> None:
        """Writes the line of a stage that has ended, and a line for each of its first five warnings."""
        self._next_line_s = _FIRST_LINE_S
        self.write(_stage_line(job, state, seconds, printable(remark)))
        for warning in warnings[:_MOST_WARNINGS]:
            self.write(f"    warning: {printable(warning)}")
        if len(warnings) > _MOST_WARNINGS:
            self.write(f"    {counted(len(warnings) - _MOST_WARNINGS, 'more warning')} in the report")


def _running_line(job: str, seconds: float, stage_log: Path | None) -> str:
    """Returns the line of a running stage, with the progress of its training."""
    training = "" if stage_log is None else training_progress_in(stage_log)
    return _stage_line(job, "running", seconds, printable(training))


def _stage_line(job: str, state: str, seconds: float, remark: str) -> str:
    """Returns the line of a stage, in columns.

    An example, without the padding, is `train_model  done  1.4 s  30 steps`.
    """
    return f"  {job:<{_JOB_WIDTH}}  {state:<7} {seconds:>6.1f} s  {remark}".rstrip()


# The class below shows the progress of a training run: a bar on a terminal, otherwise a line per log entry.

log = logging.getLogger("nightrank.training")
_WIDTH = 24


class TrainingBar:
    """Shows the log entries of rank 0 during a training run. Use it as a context manager.

    At the end, it moves the cursor to the line below the bar. An entry is a dictionary with these keys:

    - `training`: the architecture
    - `step`, `steps`: index of the current step, and number of steps of the training run
    - `batch_rows`: number of rows per step
    - `loss`, `rows_per_s`, `loader_wait_share`: measured since the previous entry

    The remaining time is computed from `rows_per_s`. The step index may decrease: if an elastic training
    run loses a rank, it continues from its last checkpoint.
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
        """Shows an entry.

        If the entry and the previous entry belong to different training runs, a new line begins.
        """
        name, step = str(entry["training"]), int(entry["step"])
        if self._last and self._last[0] != name:
            self._bar.end()
        text = _training_line(entry)
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


# The line of a training run in a log, such as `dlrm    300/1,200  loss 0.51000  …  7:30 left`.
_TRAINING_LINE = re.compile(r"\S+ +[\d,]+/[\d,]+  loss .* left\b")
_TAIL_BYTES = 4096


def training_progress_in(stage_log: Path) -> str:
    """Returns the last progress line of a training run in a stage's log; empty without such a line."""
    try:
        with stage_log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            tail = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    lines = _TRAINING_LINE.findall(tail)
    return re.sub(" +", " ", lines[-1]) if lines else ""


def _training_line(entry: Mapping[str, Any]) -> str:
    """Returns one line with the figures of a training run's log entry in columns."""
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
    """Returns, as text, the time that `steps` more steps take at the entry's rows per second."""
    seconds = round(steps * entry["batch_rows"] / max(entry["rows_per_s"], 1))
    hours, minutes = seconds // 3600, seconds // 60 % 60
    clock = f"{hours}:{minutes:02}:{seconds % 60:02}" if hours else f"{minutes}:{seconds % 60:02}"
    return f"{clock} left"


# A function that formats aligned tables for a terminal.


def text_table(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Returns an aligned table, indented by two spaces. Control characters in the cells are escaped.

    Args:
        headers: one header per column.
        rows: the cells of each row.
        right: indices of the columns that are aligned right.
    """
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
