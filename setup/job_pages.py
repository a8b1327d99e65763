"""Writes docs/jobs.md from the `--help` of every job: `python -m setup.job_pages docs/jobs.md`.

`make docs` runs this module.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from setup.console import SetupError, fail

ROOT = Path(__file__).resolve().parent.parent
WIDTH = "100"
_HEAD = """# Jobs

For people who submit or schedule jobs. `make docs` generates this page from each job's `--help`; do not edit
it. [The overview](overview.md) says which tables each job reads and publishes.

    spark-submit --properties-file conf/spark/<profile>.conf jobs/<job>.py --config <yaml> --run-date <date>
"""


def job_files(root: Path = ROOT) -> list[Path]:
    """The files of jobs/ that can be submitted, sorted by name."""
    return sorted(
        path for path in (root / "jobs").glob("*.py") if "__main__" in path.read_text(encoding="utf-8")
    )


def help_text(job: Path) -> str:
    """The output of `--help` of a job on a terminal with 100 columns.

    Raises:
        SetupError: the job cannot be started.
    """
    environment = {**os.environ, "COLUMNS": WIDTH}
    ended = subprocess.run(
        [sys.executable, str(job), "--help"], capture_output=True, text=True, check=False, env=environment
    )
    if ended.returncode:
        raise SetupError(f"{job.name} --help ended with exit code {ended.returncode}:\n{ended.stderr}")
    return ended.stdout


def page(helps: Mapping[str, str]) -> str:
    """The page: a section for each job, with its help text.

    Args:
        helps: maps the name of each job, without `.py`, to its help text.
    """
    sections = [f"## {name}\n\n```text\n{text.strip()}\n```\n" for name, text in sorted(helps.items())]
    return "\n".join([_HEAD, *sections])


def main(words: list[str]) -> None:
    """Writes the page to the path given as the only argument.

    Raises:
        SetupError: there is not exactly one argument, or a job cannot be started.
    """
    if len(words) != 1:
        raise SetupError("give one path: python -m setup.job_pages docs/jobs.md")
    Path(words[0]).write_text(page({job.stem: help_text(job) for job in job_files()}), encoding="utf-8")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SetupError as error:
        sys.exit(fail(error))
