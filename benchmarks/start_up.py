"""Measures how much faster small jobs run if their JVM loads classes from an archive instead of jars.

    .venv/bin/python benchmarks/start_up.py [--quick]

`make setup` creates this archive of Spark's classes. spark-submit runs the jobs build_features and report
with conf/spark/local.conf on a click log of 6,000 rows. On such a small log, most of the time is start-up.
Runs with the archive and runs with jars take turns, and the medians are compared. The ratios `build_features`
and `report` are the seconds with jars divided by the seconds with the archive.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import machine, summary_line, table
from setup.class_archive import NAME

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
ARCHIVE = BIN.parent / NAME
CONFIG = "conf/datasets/generated.yaml"
FIRST, RUN_DATE = "2026-01-01", "2026-01-04"
LOG = (
    "generate.days=4",
    "generate.rows_per_day=1500",
    "generate.users=100",
    "generate.items=50",
    "generate.files_per_day=1",
    "split.train_days=2",
    "split.min_train_days=2",
)
JOBS = ("build_features", "report")
OPTIONS = {
    "archive": f"-XX:SharedArchiveFile={ARCHIVE} -Xlog:cds=off -Xlog:class+path=off",
    "jars": "",
}


def seconds_of(job: str, run_date: str, lake: Path, options: str) -> float:
    """Returns the seconds of one run of a job, from the start of spark-submit to its end."""
    words = ["--config", CONFIG, "--run-date", run_date]
    for override in (*LOG, f"lake={lake}"):
        words += ["--set", override]
    began = time.perf_counter()
    done = subprocess.run(
        [BIN / "spark-submit", "--properties-file", "conf/spark/local.conf", f"jobs/{job}.py", *words],
        cwd=ROOT,
        env={**os.environ, "SPARK_SUBMIT_OPTS": options, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"the job {job} ended with exit code {done.returncode}:\n{done.stderr[-2000:]}")
    return time.perf_counter() - began


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="one turn instead of five")
    turns = 1 if parser.parse_args(arguments).quick else 5
    if not ARCHIVE.exists():
        raise SystemExit(
            f"{ARCHIVE} does not exist: run `make setup`, which creates this archive or prints why it cannot"
        )
    times: dict[str, dict[str, list[float]]] = {name: {job: [] for job in JOBS} for name in OPTIONS}
    with tempfile.TemporaryDirectory(prefix="nightrank-start-up-") as folder:
        seconds_of("generate_clicks", FIRST, Path(folder) / "lake", "")
        for turn in range(turns + 1):  # the first turn fills the file cache and does not count
            for name, options in OPTIONS.items():
                for job in JOBS:
                    seconds = seconds_of(job, RUN_DATE, Path(folder) / "lake", options)
                    if turn:
                        times[name][job].append(seconds)
    medians = {
        name: {job: statistics.median(seconds) for job, seconds in jobs.items()}
        for name, jobs in times.items()
    }
    rows = [(name, *(f"{jobs[job]:.2f}" for job in JOBS)) for name, jobs in medians.items()]
    print(table(("classes from", *(f"{job}, s" for job in JOBS)), rows))
    ratios = {job: round(medians["jars"][job] / medians["archive"][job], 3) for job in JOBS}
    ours = {job: round(value, 2) for job, value in medians["archive"].items()}
    peers = {"jars": {job: round(value, 2) for job, value in medians["jars"].items()}}
    print(summary_line("start_up", machine(len(os.sched_getaffinity(0)), ("pyspark",)), ours, peers, ratios))


if __name__ == "__main__":
    main()
