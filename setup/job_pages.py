"""Writes docs/jobs.md and nightrank/jobs.json from the `--help` of every job: `python -m setup.job_pages`.

`make docs` runs this module. The command `nightrank` reads the JSON for its own help and for completion.
"""

from __future__ import annotations

import json
import os
import re
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


def help_text(job: Path | str) -> str:
    """The output of `--help` of a job on a terminal with 100 columns.

    Args:
        job: the path of its script, or the name of its module.

    Raises:
        SetupError: the job cannot be started.
    """
    environment = {**os.environ, "COLUMNS": WIDTH}
    program = [str(job)] if isinstance(job, Path) else ["-m", job]
    ended = subprocess.run(
        [sys.executable, *program, "--help"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=ROOT,
    )
    if ended.returncode:
        raise SetupError(f"{program[-1]} --help ended with exit code {ended.returncode}:\n{ended.stderr}")
    return ended.stdout


def page(helps: Mapping[str, str]) -> str:
    """The page: a section for each job, with its help text.

    Args:
        helps: maps the name of each job, without `.py`, to its help text.
    """
    sections = [f"## {name}\n\n```text\n{text.strip()}\n```\n" for name, text in sorted(helps.items())]
    return "\n".join([_HEAD, *sections])


def options_page(helps: Mapping[str, str]) -> str:
    """The JSON: for each job its options, and the first sentence of its description.

    Args:
        helps: see `page`.
    """
    jobs = {
        name: {
            "summary": _first_sentence(text),
            "options": re.findall(r"^  (?:-h, )?(--[a-z-]+)", text, re.M),
        }
        for name, text in sorted(helps.items())
    }
    return json.dumps(jobs, indent=1, ensure_ascii=False) + "\n"


def _first_sentence(text: str) -> str:
    """The first sentence of the description in a job's help text, which follows the usage."""
    description = " ".join(text.split("\n\n")[1].split())
    return re.split(r"(?<=[.:]) ", description)[0].rstrip(".:")


def helps_of_jobs(root: Path = ROOT) -> dict[str, str]:
    """The help text of each job and of the doctor, by name."""
    return {**{job.stem: help_text(job) for job in job_files(root)}, "doctor": help_text("setup.doctor")}


def generated_files(helps: Mapping[str, str]) -> dict[str, str]:
    """The texts of the generated files by path, relative to the root of the checkout."""
    jobs = {name: text for name, text in helps.items() if name != "doctor"}
    return {"docs/jobs.md": page(jobs), "nightrank/jobs.json": options_page(helps)}


def main(words: list[str]) -> None:
    """Writes the files.

    Raises:
        SetupError: there is an argument, or a job cannot be started.
    """
    if words:
        raise SetupError("give no argument: python -m setup.job_pages")
    for name, text in generated_files(helps_of_jobs()).items():
        (ROOT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SetupError as error:
        sys.exit(fail(error))
