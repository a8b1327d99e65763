"""Measures the CPU time of a Spark task in Python that does no work.

    .venv/bin/python benchmarks/python_tasks.py [--quick]

It compares our worker daemon (the process that forks Python workers) with Spark's own. A Spark session on
local[2] runs many tasks, and each returns its one input row as an Arrow batch. The figure is the CPU time
per task in milliseconds: the median over several jobs. The first job of a session, in which workers start and
import modules, is not counted. Each session has a process of its own, and the two daemons take turns. The
ratio `task` is the time with Spark's daemon divided by the time with ours.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import machine, summary_line, table

if TYPE_CHECKING:
    import pyarrow as pa

ROOT = Path(__file__).resolve().parent.parent
DAEMONS = {"ours": "spark.worker_daemon", "spark": "pyspark.daemon"}
CORES, TURNS, ROUNDS = 2, 3, 5


def same(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    return batches


def rounds_of(daemon: str, tasks: int) -> list[float]:
    """Runs several jobs in a Spark session of this process.

    Returns one element per job: the milliseconds of CPU time per task.
    """
    from spark.properties import read_properties
    from spark.session import build_session

    settings = read_properties(ROOT / "conf/spark/local.conf")
    spark = build_session("python tasks", settings | {"spark.python.daemon.module": daemon})
    times_ms = []
    for _ in range(ROUNDS + 1):  # the first round starts the workers and does not count
        began = time.perf_counter()
        rows = spark.range(0, tasks, 1, tasks).mapInArrow(same, "id long").count()
        times_ms.append((time.perf_counter() - began) * 1000 * CORES / tasks)
        assert rows == tasks
    spark.stop()
    return times_ms[1:]


def measured(daemon: str, tasks: int) -> list[float]:
    command = [sys.executable, __file__, "--daemon", daemon, "--tasks", str(tasks)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(
            f"the session with the daemon {daemon} ended with exit code {done.returncode}:\n{done.stderr[-2000:]}"
        )
    return list(json.loads(done.stdout.splitlines()[-1]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="one turn of 100 tasks instead of three of 200")
    parser.add_argument("--daemon", help=argparse.SUPPRESS)
    parser.add_argument("--tasks", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.daemon:
        print(json.dumps(rounds_of(options.daemon, options.tasks)))
        return
    turns, tasks = (1, 100) if options.quick else (TURNS, 200)
    times_ms: dict[str, list[float]] = {name: [] for name in DAEMONS}
    for _ in range(turns):
        for name, daemon in DAEMONS.items():
            times_ms[name] += measured(daemon, tasks)
    medians = {name: round(statistics.median(times), 2) for name, times in times_ms.items()}
    rows = [
        (DAEMONS[name], f"{medians[name]:.1f}", f"{min(times):.1f}", f"{max(times):.1f}")
        for name, times in times_ms.items()
    ]
    print(table(("spark.python.daemon.module", "ms a task", "lowest", "highest"), rows))
    ratios = {"task": round(medians["spark"] / medians["ours"], 3)}
    ours, peers = {"ms_a_task": medians["ours"]}, {"spark": {"ms_a_task": medians["spark"]}}
    print(summary_line("python_tasks", machine(CORES, ("pyspark", "pyarrow")), ours, peers, ratios))


if __name__ == "__main__":
    main()
