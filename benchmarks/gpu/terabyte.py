"""Measures how long build_features takes for each additional row, and predicts the time for a terabyte log.

    .venv/bin/python benchmarks/gpu/terabyte.py [--quick]

A run has costs that do not depend on the number of rows: the start, planning and manifests. The time of a small log
consists mostly of these costs, so it must not be multiplied. On all cores of the machine, the script runs the job on a
log of 16 million rows in Criteo's layout and on one of 64 million, in which each day has the rows of the first log's
day four times. The difference of the times divided by the difference of the rows is the time of a row. `terabyte_minutes` is this time multiplied by 4.11 billion
rows, the size of Criteo's terabyte log: a prediction, in which vocabularies do not grow with the log. The ratio
`of_naive` is the time that the smaller log alone would predict, divided by `terabyte_minutes`. On a machine without a
GPU, logs are tiny and nothing is measured.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.criteo_log import make_log, repeated
from benchmarks.etl_runs import CACHE, DAYS, ContenderFailed, Run, job, log_by_day, run_contender
from benchmarks.gpu.etl import gpu_name
from benchmarks.report import machine, summary_line, table

TERABYTE_ROWS = 4_110_000_000
ROWS, QUICK_ROWS, TINY_ROWS = 16_000_000, 4_000_000, 4_000
TIMES = 4
LIMIT_S = 300.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS:,} and four times as many rows")
    options = parser.parse_args(arguments)
    gpu, cores = gpu_name(), len(os.sched_getaffinity(0))
    of_machine = {**machine(cores, ("pyarrow",)), "gpu": gpu}
    rows = (QUICK_ROWS if options.quick else ROWS) if gpu else TINY_ROWS
    runs = run_twice(rows, cores, [])
    of_row = seconds_of_row(runs)
    minutes = of_row * TERABYTE_ROWS / 60
    few, first = next(iter(runs.items()))
    naive = first.seconds / few * TERABYTE_ROWS / 60
    print(f"{gpu or 'There is no GPU: logs are tiny and nothing is measured.'}, {cores} cores\n")
    lines = [[f"{number:,}", f"{run.seconds:.1f}", f"{run.cpu_s:.1f}"] for number, run in runs.items()]
    print(table(["rows", "seconds", "CPU s"], lines))
    if gpu:
        print(f"\nmicroseconds of a row: {of_row * 1e6:.3f}; predicted minutes of a terabyte: {minutes:.1f}")
    facts = {
        str(number): {"seconds": round(run.seconds, 2), "cpu_s": round(run.cpu_s, 2)}
        for number, run in runs.items()
    }
    more = {"terabyte_minutes": round(minutes, 1) if gpu else None, "predicted": True}
    ratios = {"of_naive": naive / minutes if gpu and minutes > 0 else None}
    print(summary_line("gpu_terabyte", of_machine, facts, {}, ratios, **more))
    return 0


def run_twice(rows: int, cores: int, overrides: Sequence[str], compared: bool = False) -> dict[int, Run]:
    """Runs the job on a log, and on one with `TIMES` as many rows. Returns the runs by their number of rows.

    Args:
        rows: number of rows of the first log.
        cores: number of cores to which the job is pinned.
        overrides: values for the job's option --set.
        compared: whether checksums of the tables of the first log are needed.

    Raises:
        ContenderFailed: the job failed, or reached the time limit.
    """
    log = make_log(CACHE, rows, DAYS, processes=min(DAYS, cores))
    runs = {}
    for times in (1, TIMES):
        days = log_by_day(repeated(log, times))
        contender = job(days, overrides)
        runs[rows * times] = run_contender(contender, days, cores, LIMIT_S, compared and times == 1)
    return runs


def seconds_of_row(runs: Mapping[int, Run]) -> float:
    """Returns the difference of the times of two runs, divided by the difference of their rows."""
    (few, first), (many, second) = runs.items()
    return (second.seconds - first.seconds) / (many - few)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ContenderFailed as error:
        print(f"terabyte: {error}", file=sys.stderr)
        sys.exit(1)
