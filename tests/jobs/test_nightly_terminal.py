"""Progress lines: a running clock on a terminal, plain lines anywhere else."""

from __future__ import annotations

import io

import pytest

from reporting.terminal import LiveLine, StageProgress


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


def test_terminal_shows_each_second_once_and_clears_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    erased, *drawn = _run_a_stage(Terminal())[0].split("\r\x1b[K")
    assert erased == ""
    assert [line.split()[1:3] for line in drawn[:2]] == [["running", "0.0"], ["running", "1.0"]]
    assert drawn[2:] == ["  train_model              done       1.4 s  30 steps"]


def test_a_long_line_is_cut_so_that_it_can_be_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    LiveLine(stream).draw("x" * 200)
    assert stream.getvalue() == "\r\x1b[K" + "x" * 59


def test_a_terminal_without_control_sequences_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert _run_a_stage(Terminal()) == ["  train_model              done       1.4 s  30 steps", ""]
