"""`--help` of every job, word for word.

After a deliberate change write the files anew: python -m tests.contract.test_help
"""

from __future__ import annotations

import io
import logging
import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
WIDTH = "100"
JOBS = sorted(path for path in (ROOT / "jobs").glob("*.py") if "__main__" in path.read_text(encoding="utf-8"))


@contextmanager
def _as_found() -> Iterator[None]:
    """Puts back what a job changes in its process before it reads its arguments."""
    argv, handlers, width = sys.argv, logging.root.handlers[:], os.environ.get("COLUMNS")
    try:
        yield
    finally:
        sys.argv, logging.root.handlers[:] = argv, handlers
        if width is None:
            os.environ.pop("COLUMNS", None)
        else:
            os.environ["COLUMNS"] = width


def help_of(job: Path) -> str:
    """What `job --help` prints on a terminal of WIDTH columns; the job's file is run in this process."""
    printed = io.StringIO()
    with _as_found(), redirect_stdout(printed):
        os.environ["COLUMNS"] = WIDTH
        sys.argv = [job.name, "--help"]
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(job), run_name="__main__")
    assert ended.value.code == 0
    return printed.getvalue()


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_help_is_the_golden_one(job: Path) -> None:
    assert help_of(job) == (GOLDEN / f"{job.stem}.txt").read_text(encoding="utf-8")


def test_every_golden_file_has_its_job() -> None:
    assert [path.stem for path in sorted(GOLDEN.glob("*.txt"))] == [job.stem for job in JOBS]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_help_is_complete(job: Path) -> None:
    """It says what the job does, and every option has a line of its own with an explanation."""
    text = help_of(job)
    usage, description, *_ = text.split("\n\n")
    assert usage.startswith(f"usage: {job.name}")
    assert len(description.split()) > 3
    options = text.split("options:\n")[1].split("\n\n")[0]
    for line in options.splitlines():
        if line.startswith("  -"):
            explained = "  " in line.strip() or options.split(line)[1].startswith("\n        ")
            assert explained, line


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for stale in GOLDEN.glob("*.txt"):
        stale.unlink()
    for job in JOBS:
        (GOLDEN / f"{job.stem}.txt").write_text(help_of(job), encoding="utf-8")
