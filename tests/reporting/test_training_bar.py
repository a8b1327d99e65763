"""The bar of a training, on a terminal and in a log."""

from __future__ import annotations

import io
from typing import Any

import pytest

from reporting.terminal import TrainingBar


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        """Always true."""
        return True


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


def entry(step: int, **other: Any) -> dict[str, Any]:
    figures = {"loss": 0.51, "rows_per_s": 2_000, "loader_wait_share": 0.034}
    return {"training": "dlrm", "step": step, "steps": 1_200, "batch_rows": 1_000, **figures, **other}


def test_a_terminal_shows_a_bar_that_is_drawn_over() -> None:
    terminal = Terminal()
    with TrainingBar(terminal) as bar:
        bar.show(entry(300))
        bar.show(entry(1_200, loss=0.5))
        bar.show(entry(600, training="logistic_regression"))
    first, second, third = terminal.getvalue().split("\r\x1b[K")[1:]
    figures = "loss 0.51000  2,000 rows/s  3% waiting"
    assert first == f"  [######..................]  dlrm    300/1,200  {figures}  7:30 left"
    assert second.startswith(f"  [{'#' * 24}]  dlrm  1,200/1,200  loss 0.50000")
    assert second.endswith("0:00 left\n")
    assert third.endswith("5:00 left\n")


def test_a_narrow_terminal_shows_the_figures_without_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal()
    with TrainingBar(terminal) as bar:
        bar.show(entry(300))
    (line,) = terminal.getvalue().rstrip("\n").split("\r\x1b[K")[1:]
    assert line == "  dlrm    300/1,200  loss 0.51000  2,000 rows/s  3% waiting  7:30 left"


def test_a_lost_rank_is_seen_in_the_steps() -> None:
    terminal = Terminal()
    with TrainingBar(terminal) as bar:
        for step in (500, 420, 440):
            bar.show(entry(step))
    lines = terminal.getvalue().split("\r\x1b[K")[1:]
    assert [" (back from step 500)" in line for line in lines] == [False, True, False]


def test_a_log_gets_a_line_an_entry(caplog: pytest.LogCaptureFixture) -> None:
    log = io.StringIO()
    with caplog.at_level("INFO"), TrainingBar(log) as bar:
        bar.show(entry(300))
        bar.show(entry(301, rows_per_s=100))
    assert log.getvalue() == ""
    lines = [record.message for record in caplog.records]
    assert lines[0] == "dlrm    300/1,200  loss 0.51000  2,000 rows/s  3% waiting  7:30 left"
    assert lines[1].endswith("  2:29:50 left")
