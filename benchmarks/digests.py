"""Measures the cost of the digests of data files: for one file, and for build_features and score_daily.

    .venv/bin/python benchmarks/digests.py [--quick] [--rows N] [--pairs N]

The jobs run in turn with digests and without. Without digests, a hook of Python's imports
(benchmarks/peers/no_digests) replaces the functions of storage/file_digests.py in all processes of a job, so
that no file is hashed or compared. Each run of a job starts with a copy of the same lake. The script compares the
median CPU seconds of the process tree (benchmarks/harness.py), which vary less than the elapsed seconds.

These medians still vary by more than the digests cost. So each job runs once more with another hook
(benchmarks/peers/timed_digests), which adds up the CPU seconds inside the functions of storage/file_digests.py in all
processes of the job. `share` is this sum divided by the CPU seconds of the job.

The figures of a file are the CPU seconds in which pyarrow writes and reads a Parquet file of about 100 MB in the
file cache, with and without its digest. The digest is taken either while the file is written, as jobs do, or
from the finished file.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks import harness
from benchmarks.harness import Measured
from benchmarks.report import machine, summary_line, table
from storage.file_digests import digest_of_file, new_file

ROOT = Path(__file__).resolve().parent.parent
CORES, LIMIT_S, FILE_BYTES = 2, 3_600.0, 100_000_000
FIRST_DAY, RUN_DATE = "2026-01-01", "2026-01-04"
TARGET = 0.03  # largest share of the CPU seconds of a job
SECONDS_FILE = "digest_seconds.txt"
JOBS = ("build_features", "score_daily")


def file_seconds(folder: Path, file_bytes: int, repeats: int) -> dict[str, float]:
    """Returns the median CPU seconds of each way to write or read one Parquet file."""
    rng = np.random.default_rng(1)
    columns = {f"f{index}": rng.random(file_bytes // 80, np.float32) for index in range(20)}
    rows = pa.table(columns)
    path = str(folder / "file.parquet")

    def plain() -> None:
        with open(path, "wb") as sink:
            pq.write_table(rows, sink, compression="zstd", row_group_size=100_000)

    def hashed_after() -> None:
        plain()
        digest_of_file(path)

    def hashed_while_written() -> None:
        with new_file(path) as file:
            pq.write_table(rows, file.sink, compression="zstd", row_group_size=100_000)

    ways: dict[str, Callable[[], object]] = {
        "write": plain,
        "write, then hash": hashed_after,
        "hash while writing": hashed_while_written,
        "read": lambda: pq.ParquetFile(path).read(use_threads=False),
        "hash": lambda: digest_of_file(path),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, run in ways.items():
            began = time.process_time()
            run()
            seconds[name].append(time.process_time() - began)
    return {name: round(statistics.median(values), 4) for name, values in seconds.items()}


def run_job(job: str, config: Path, folder: Path, *, hook: str | None = None) -> Measured:
    """Runs a job in a process of its own. `hook` is the name of a folder in benchmarks/peers."""
    paths = [*([str(ROOT / "benchmarks/peers" / hook)] if hook else []), str(ROOT)]
    arguments = [f"--config={config}", f"--run-date={RUN_DATE}", *(["--retrain"] if job == "nightly" else [])]
    variables = {"PYTHONPATH": os.pathsep.join(paths), "DIGEST_SECONDS": str(folder / SECONDS_FILE)}
    return harness.run_job(job, arguments, folder, cores=CORES, limit_s=LIMIT_S, variables=variables)


def job_runs(
    folder: Path, rows: int, pairs: int
) -> tuple[dict[str, dict[bool, list[Measured]]], dict[str, tuple[float, float]]]:
    """Runs each job `pairs` times with digests (True) and without (False), in turn, and once with timed digests.

    Returns:
        The runs of each job and, for its last run, the CPU seconds in digest functions and all CPU seconds.
    """
    lake, config = folder / "lake", folder / "config.yaml"
    settings = {
        "extends": str(ROOT / "conf/datasets/generated.yaml"),
        "lake": str(lake),
        "generate": {"days": 4, "rows_per_day": rows, "users": max(300, rows // 4), "files_per_day": 1},
        "split": {"train_days": 2, "min_train_days": 2},
        "train": {"epochs": 1, "baselines": [], "num_ranks": 1},
    }
    config.write_text(yaml.safe_dump(settings))
    generate = [f"--config={config}", f"--run-date={FIRST_DAY}"]
    harness.run_job("generate_clicks", generate, folder, cores=CORES, limit_s=LIMIT_S)
    starts = {"build_features": folder / "raw", "score_daily": folder / "ready"}
    shutil.copytree(lake, starts["build_features"])
    run_job("nightly", config, folder)
    shutil.rmtree(lake / "recommendations")
    shutil.copytree(lake, starts["score_daily"])
    runs: dict[str, dict[bool, list[Measured]]] = {job: {True: [], False: []} for job in JOBS}
    inside: dict[str, tuple[float, float]] = {}
    for job in JOBS:
        for index in range(2 * pairs + 1):
            digests = index % 2 == 0
            shutil.rmtree(lake)
            shutil.copytree(starts[job], lake)
            one = run_job(job, config, folder, hook=None if digests else "no_digests")
            if index:  # the first run reads the programs from disk
                runs[job][digests].append(one)
            print(f"digests: {job}, digests {digests}: {one.cpu_s:.2f} CPU s", file=sys.stderr, flush=True)
        shutil.rmtree(lake)
        shutil.copytree(starts[job], lake)
        last = run_job(job, config, folder, hook="timed_digests")
        lines = (folder / SECONDS_FILE).read_text().splitlines()
        (folder / SECONDS_FILE).unlink()
        inside[job] = (sum(float(line.split()[1]) for line in lines), last.cpu_s)
    return runs, inside


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="20,000 rows per day, one pair, a file of 10 MB")
    parser.add_argument("--rows", type=int, default=500_000, help="rows per day (default %(default)s)")
    parser.add_argument("--pairs", type=int, default=7, help="pairs of runs of a job (default %(default)s)")
    options = parser.parse_args(arguments)
    rows, pairs = (20_000, 1) if options.quick else (options.rows, options.pairs)
    with tempfile.TemporaryDirectory() as scratch:
        seconds = file_seconds(
            Path(scratch), FILE_BYTES // (10 if options.quick else 1), 3 if options.quick else 9
        )
        runs, inside = job_runs(Path(scratch), rows, pairs)
    print(table(("one file", "CPU s"), [(name, f"{value}") for name, value in seconds.items()]))
    print()
    cpu = {
        job: {digests: statistics.median(one.cpu_s for one in of_job[digests]) for digests in (True, False)}
        for job, of_job in runs.items()
    }
    wall = {
        job: {digests: statistics.median(one.wall_s for one in of_job[digests]) for digests in (True, False)}
        for job, of_job in runs.items()
    }
    ratios = {job: cpu[job][False] / cpu[job][True] for job in JOBS}
    lines = [
        (
            job,
            f"{cpu[job][True]:.2f}",
            f"{cpu[job][False]:.2f}",
            f"{wall[job][True]:.2f}",
            f"{wall[job][False]:.2f}",
            f"{ratios[job]:.3f}",
            f"{inside[job][0]:.3f}",
            f"{inside[job][0] / inside[job][1]:.2%}",
            "met" if inside[job][0] / inside[job][1] <= TARGET else "MISSED",
        )
        for job in JOBS
    ]
    columns = ["job", "CPU s", "without", "seconds", "without", "ratio", "CPU s of digests", "share"]
    head = (*columns, f"target {TARGET:.0%}")
    print(table(head, lines))
    ours = {
        "rows_per_day": rows,
        "pairs": pairs,
        "file_cpu_s": seconds,
        **{f"{job}_cpu_s": round(cpu[job][True], 3) for job in JOBS},
        **{f"{job}_s": round(wall[job][True], 3) for job in JOBS},
        **{f"{job}_digests_cpu_s": round(inside[job][0], 4) for job in JOBS},
        **{f"{job}_share": round(inside[job][0] / inside[job][1], 5) for job in JOBS},
    }
    peers = {
        "without digests": {
            **{f"{job}_cpu_s": round(cpu[job][False], 3) for job in JOBS},
            **{f"{job}_s": round(wall[job][False], 3) for job in JOBS},
        }
    }
    print(summary_line("digests", machine(CORES, ("pyarrow", "xxhash")), ours, peers, ratios))


if __name__ == "__main__":
    main()
