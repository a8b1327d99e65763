"""Progress lines: a running clock on a terminal, plain lines anywhere else."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest

from reporting.terminal import LiveLine, StageProgress, TrainingBar


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        """Always true."""
        return True


def _run_a_stage(stream: io.StringIO) -> list[str]:
    progress = StageProgress(stream)
    for seconds in (0.2, 0.6, 1.2):
        progress.tick("train_model", seconds)
    progress.finished("train_model", "done", 1.4, "30 steps")
    return stream.getvalue().split("\n")


def test_plain_output_has_one_line_a_stage_and_no_control_characters() -> None:
    lines = _run_a_stage(io.StringIO())
    assert lines == ["  train_model              done       1.4 s  30 steps", ""]


def test_a_log_shows_that_a_long_stage_still_runs(tmp_path: Path) -> None:
    stream, stage_log = io.StringIO(), tmp_path / "train_model.log"
    stage_log.write_text("INFO sasrec  40/1,200  loss 0.50000  1,000 rows/s  0% waiting  1:56 left\n")
    progress = StageProgress(stream)
    for job in ("train_model", "refit_model"):
        for second in range(2_000):
            progress.tick(job, second + 0.3, stage_log)
        progress.finished(job, "done", 2_000.0, "")
    lines = stream.getvalue().splitlines()
    assert [float(line.split()[2]) for line in lines] == [
        60.3,
        121.3,
        243.3,
        487.3,
        975.3,
        1_575.3,
        2_000.0,
    ] * 2
    assert lines[0].endswith(
        "running   60.3 s  sasrec 40/1,200 loss 0.50000 1,000 rows/s 0% waiting 1:56 left"
    )


def test_the_first_warnings_of_a_stage_follow_its_line() -> None:
    stream = io.StringIO()
    warnings = [f"column C{number} has new values\x1b" for number in range(7)]
    StageProgress(stream).finished("build_features", "done", 1.0, "7 warnings", warnings)
    _, *lines = stream.getvalue().splitlines()
    assert lines[0] == "    warning: column C0 has new values\\x1b"
    assert len(lines) == 6
    assert lines[-1] == "    2 more warnings in the report"


def test_terminal_shows_each_second_once_and_clears_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    erased, *drawn = _run_a_stage(Terminal())[0].split("\r\x1b[K")
    assert erased == ""
    assert [line.split()[1:3] for line in drawn[:2]] == [["running", "0.0"], ["running", "1.0"]]
    assert drawn[2:] == ["  train_model              done       1.4 s  30 steps"]


def test_a_terminal_shows_the_progress_of_a_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    stream, stage_log = Terminal(), tmp_path / "train_model.log"
    progress = StageProgress(stream)
    progress.tick("train_model", 0.2, stage_log)  # there is no log yet
    lines = TrainingLines()
    monkeypatch.setattr(logging.getLogger("nightrank.training"), "info", lines.write)
    with TrainingBar(io.StringIO()) as bar:  # not a terminal, so it writes into the log
        for step in (20, 40):
            bar.show(
                {"training": "sasrec", "step": step, "steps": 1_200, "batch_rows": 100}
                | {"loss": 0.5, "rows_per_s": 1_000, "loader_wait_share": 0.0}
            )
    stage_log.write_text("".join(f"2026-01-01 INFO {line}\n" for line in [*lines.texts, "something else"]))
    progress.tick("train_model", 1.3, stage_log)
    first, second = stream.getvalue().split("\r\x1b[K")[1:]
    assert first == "  train_model              running    0.0 s"
    assert second.endswith("1.0 s  sasrec 40/1,200 loss 0.50000 1,000 rows/s 0% waiting 1:56 left")


class TrainingLines:
    """Collects the lines of a log."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def write(self, text: str) -> None:
        """Collects a line."""
        self.texts.append(text)


def test_a_long_line_is_cut_so_that_it_can_be_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    LiveLine(stream).draw("x" * 200)
    assert stream.getvalue() == "\r\x1b[K" + "x" * 59


def test_a_terminal_without_control_sequences_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert _run_a_stage(Terminal()) == ["  train_model              done       1.4 s  30 steps", ""]
