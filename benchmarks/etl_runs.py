"""Runs contenders of the ETL benchmarks one after the other, and measures the process tree of each."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import ours
from benchmarks.agreement import Summary, summarise
from benchmarks.contender import START_UP, WORK, Day, Outcome, Task
from benchmarks.criteo_log import DayFile
from benchmarks.harness import Measured, measure, settle
from benchmarks.report import GIB
from setup import java_home
from setup.console import cache_folder

ROOT = Path(__file__).resolve().parent.parent
CACHE = cache_folder() / "benchmarks"
MIN_COUNT = 15
DAYS = 4  # two to fit on, one to validate and one to test on; all four are encoded
TRAIN_DAYS = 2


@dataclass(frozen=True)
class Log:
    """The log that all contenders read.

    Attributes:
        data: the value of `data` in our configuration.
        days, format, files, shares: see `Task`, which calls the files `log`.
        min_count: values that occur at least this often in the train rows get an id.
        overrides: further values of our configuration, which describe the layout.
    """

    data: str
    days: tuple[Day, ...]
    format: str = "tsv"
    files: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()
    min_count: int = MIN_COUNT
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Contender:
    """A contender of an ETL benchmark.

    Attributes:
        name: name in the output.
        module: the module to run (see benchmarks.contender); None for our job, which benchmarks.ours starts.
        settings: further settings, which only this contender has.
        python: the Python interpreter that runs the module.
        ties: True if the contender assigns ids to values of equal counts in the order of the values, as our
            job does.
        submitted: whether our job is started with spark-submit.
    """

    name: str
    module: str | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    python: str = sys.executable
    ties: bool = True  # whether ids of equal counts are ordered by value
    submitted: bool = False


@dataclass(frozen=True)
class Run:
    """The result of one run of a contender.

    Attributes:
        seconds: seconds from the start of the command to its end.
        cpu_s: CPU seconds of the process tree.
        start_up_s: seconds of the start-up: the interpreter and imports, and in peers that use Spark also its
            session. None for our job, whose processes start while others work.
        parts: maps the name of each part of the work to its seconds.
        measured: the resources that the process tree used, start-up included.
        outcome: the report of the contender.
        output_bytes: size of all files of the result.
        summary: checksums of the result; None if it is not compared.
    """

    seconds: float
    cpu_s: float
    start_up_s: float | None
    parts: Mapping[str, float]
    measured: Measured
    outcome: Outcome
    output_bytes: int
    summary: Summary | None

    def facts(self, rows: int) -> dict[str, Any]:
        return {
            "seconds": round(self.seconds, 2),
            "cpu_s": round(self.cpu_s, 2),
            "start_up_s": None if self.start_up_s is None else round(self.start_up_s, 2),
            "peak_rss_gib": round(self.measured.peak_rss_bytes / GIB, 2),
            "peak_pss_gib": round(self.measured.peak_pss_bytes / GIB, 2),
            "rows_per_s": round(rows / self.seconds),
            "output_bytes": self.output_bytes,
            "parts_s": {name: round(seconds, 2) for name, seconds in self.parts.items()},
        }


class ContenderFailed(Exception):
    """An error: a contender failed, or was stopped at its time limit.

    `limit_s` is the time limit. It is None if the contender failed for another reason.
    """

    def __init__(self, message: str, limit_s: float | None = None) -> None:
        super().__init__(message)
        self.limit_s = limit_s


def days_of(log: Sequence[DayFile]) -> tuple[Day, ...]:
    return tuple(Day(file.dt, file.path, place < TRAIN_DAYS) for place, file in enumerate(log))


def log_by_day(log: Sequence[DayFile]) -> Log:
    """Returns a log with a file of text for each day."""
    return Log(str(Path(log[0].path).parent.parent), days_of(log))


def job(log: Log, overrides: Sequence[str], submitted: bool = False) -> Contender:
    """Returns build_features as a contender on this log.

    Args:
        log: the log.
        overrides: values for the job's option --set.
        submitted: whether spark-submit starts the job. Otherwise Python does.
    """
    settings = {"data": log.data, "overrides": [*log.overrides, *overrides]}
    return Contender("ours_in_spark" if submitted else "ours", None, settings, submitted=submitted)


def run_contender(contender: Contender, log: Log, cores: int, limit_s: float, compared: bool = True) -> Run:
    """Runs a contender once and measures its process tree.

    The input of the contender is in the file cache. The output of the contender is deleted at the end.

    Args:
        contender: the contender.
        log: the log.
        cores: number of cores to which the contender is pinned.
        limit_s: time limit in seconds.
        compared: True if the checksums of the output are needed.

    Raises:
        ContenderFailed: the contender failed, or reached the time limit. After a failure, the message has
            the last lines that the contender printed.
        Disagreement: the output does not have the columns that all contenders must write.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"run-{contender.name}-", dir=CACHE))
    try:
        for name in ("out", "scratch"):
            (folder / name).mkdir()
        report, printed = folder / "report.json", folder / "output.log"
        task = Task(
            days=log.days,
            out=str(folder / "out"),
            scratch=str(folder / "scratch"),
            report=str(report),
            min_count=log.min_count,
            threads=cores,
            settings=contender.settings,
            format=log.format,
            log=log.files,
            shares=log.shares,
        )
        task.save(folder / "task.json")
        settle(task.files)
        measured = measure(
            [contender.python, "-m", contender.module, str(folder / "task.json")]
            if contender.module
            else ours.command(task, contender.python, contender.submitted),
            log=printed,
            cores=cores,
            limit_s=limit_s,
            env=_environment(cores),
            cwd=ROOT,
        )
        if measured.timed_out:
            raise ContenderFailed(f"{contender.name} did not end within {limit_s:.0f} s", limit_s)
        output = printed.read_text(errors="replace")
        if measured.returncode or (contender.module and not report.exists()):
            tail = "\n".join(output.splitlines()[-25:])
            raise ContenderFailed(f"{contender.name} ended with exit code {measured.returncode}:\n{tail}")
        facts = json.loads(report.read_text()) if contender.module else ours.report(task, output)
        return _read(facts, measured, task, compared)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read(report: Mapping[str, Any], measured: Measured, task: Task, compared: bool) -> Run:
    spans = {name: (start, end) for name, (start, end) in report["spans"].items()}
    began = measured.samples[0][0]
    outcome = Outcome(report["files"], report["normalised"], report["facts"])
    return Run(
        seconds=measured.wall_s,
        cpu_s=measured.cpu_s,
        start_up_s=spans[WORK][0] - began if WORK in spans else None,
        parts={name: b - a for name, (a, b) in spans.items() if name not in (WORK, START_UP)},
        measured=measured,
        outcome=outcome,
        output_bytes=sum(os.path.getsize(path) for files in outcome.files.values() for path in files),
        summary=summarise(task.days, outcome) if compared else None,
    )


def _environment(cores: int) -> dict[str, str]:
    """Returns the environment variables of a contender: paths, Java's home, and the number of threads."""
    java = java_home.find()
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "POLARS_MAX_THREADS": str(cores),
        "OMP_NUM_THREADS": str(cores),
        "NUMBA_NUM_THREADS": str(cores),
    }
    env.pop("SPARK_HOME", None)
    return env | ({"JAVA_HOME": str(java)} if java else {})
