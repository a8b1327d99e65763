"""Of two processes that run a job for the same lake, configuration and date, the second waits or is refused."""

from __future__ import annotations

import argparse
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.command_line import add_wait, job_parser
from jobs.runner import OwnSession, run_in_application
from storage import file_io
from storage.job_summary import JobSummary
from storage.leases import lease
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.conftest import ROOT

DATE, CONFIG = "2026-01-04", "generated"


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Puts back what a job changes in its process."""
    root = logging.getLogger()
    before = root.handlers[:]
    yield
    root.handlers = before


def run(lake: Path, job: str, *words: str, end: int = 0) -> tuple[int, list[str]]:
    """The exit code of a job, and what its lake had while it ran."""
    parser = job_parser(job, "")
    add_wait(parser)
    config = [str(ROOT / f"conf/datasets/{CONFIG}.yaml"), "--set", f"lake={lake}", "--future"]
    arguments: argparse.Namespace = parser.parse_args(["--config", *config, "--run-date", DATE, *words])
    seen: list[str] = []

    def stage(context: RunContext) -> JobSummary:
        tickets = file_io.list_files(context.lake.leases, recursive=True)
        seen.extend(info.base_name.rsplit(".", 2)[0] for info in tickets if info.is_file)
        if end:
            raise OSError(end, "what a stage may end with")
        return JobSummary(str(lake), None, None, None, {})

    return run_in_application(job, arguments, stage, lambda _: None, OwnSession()), seen


def test_a_second_run_ends_with_4_and_names_the_first(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with lease(LakePaths(str(tmp_path)), DATE, "score_daily", CONFIG):
        assert run(tmp_path, "score_daily") == (4, [])
        assert "score_daily of generated for 2026-01-04 is being done by process" in capfd.readouterr().err
        code, seen = run(tmp_path, "report")
        assert (code, "report.generated" in seen) == (0, True)
    assert run(tmp_path, "score_daily") == (0, ["score_daily.generated"])
    assert not Path(LakePaths(str(tmp_path)).leases).exists()


def test_a_second_run_may_wait_for_the_first(tmp_path: Path) -> None:
    ended = threading.Event()

    def first() -> None:
        with lease(LakePaths(str(tmp_path)), DATE, "score_daily", CONFIG):
            held.set()
            ended.wait(60)

    held = threading.Event()
    thread = threading.Thread(target=first)
    thread.start()
    assert held.wait(60)
    threading.Timer(1.0, ended.set).start()
    assert run(tmp_path, "score_daily", "--wait", "60") == (0, ["score_daily.generated"])
    thread.join()


def test_a_failed_run_gives_its_lease_back(tmp_path: Path) -> None:
    assert run(tmp_path, "score_daily", end=28)[0] == 4
    assert run(tmp_path, "score_daily")[0] == 0


def test_planning_a_run_needs_no_lease(tmp_path: Path) -> None:
    with lease(LakePaths(str(tmp_path)), DATE, "plan_night", CONFIG):
        assert run(tmp_path, "plan_night")[0] == 0
