"""Measures build_features on one machine: on its GPU, in Spark on its CPUs, and without Spark.

    .venv/bin/python benchmarks/gpu/etl.py [--quick] [--rows N] [--only NAME …] [--logs FOLDER]

The log has the layout of Criteo's click log: four days, of which two are training days
(benchmarks/criteo_log.py). Every contender is the same job, started by its command and timed from its start
to its end, on all cores of the machine:

    gpu         spark-submit with conf/spark/etl-gpu.conf and workflow.engine=sql: the RAPIDS Accelerator, one
                executor with the GPU
    processes   python jobs/build_features.py: processes of this machine, without a JVM
    spark       spark-submit with conf/spark/cpu.conf: Arrow in Python workers
    spark_sql   the same with workflow.engine=sql, the plans of `gpu`

The three contenders in Spark run on a standalone cluster of one worker. The profiles are used as they are;
only the path of the accelerator's jar and scratch folders are added. After the runs, all feature tables,
vocabularies and means are compared with those of `processes`. If they differ, the benchmark fails. A ratio
says how many times as fast as the named contender `gpu` is. The benchmark also lists which operations the
accelerator left on the CPU, and why. If a contender fails, the ends of the logs of its driver and executors
are printed.

Without a GPU, a tiny log goes through `processes` and `spark`, executors get little memory, and nothing is
measured.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import ours
from benchmarks.contender import Outcome, Task
from benchmarks.criteo_log import DayFile, make_log
from benchmarks.etl_runs import CACHE, DAYS, MIN_COUNT, days_of
from benchmarks.gpu.etl_tables import Published, differences, read_published
from benchmarks.gpu.one_worker import FEW_COMPILATIONS, OneWorker, one_worker
from benchmarks.harness import measure, settle
from benchmarks.report import machine, summary_line, table
from setup import jars, java_home

ROOT = Path(__file__).resolve().parents[2]
PROFILES = {"gpu": "etl-gpu", "spark": "cpu", "spark_sql": "cpu"}
CONTENDERS = ("processes", "gpu", "spark", "spark_sql")
WITHOUT_GPU = ("processes", "spark")
ROWS, QUICK_ROWS, TINY_ROWS = 16_000_000, 2_000_000, 4_000
INSTALLED_JAR = Path("/opt/nightrank/rapids-4-spark.jar")
_SHOWN_LINES = 200
_LEFT_ON_CPU = re.compile(r"!\w+ <(\w+)> (?:.*? )?cannot run on GPU because (.*)")
_LITTLE_MEMORY = {"spark.driver.memory": "1g", "spark.executor.memory": "1g", "spark.executor.cores": "2"}


@dataclass(frozen=True)
class Run:
    """One run of a contender that succeeded.

    Attributes:
        seconds: seconds from the start of the command to its end.
        phases: seconds of each phase of the job.
        outcome: the published files.
        task: the log, and the folder of the result.
    """

    seconds: float
    phases: dict[str, float]
    outcome: Outcome
    task: Task


@dataclass(frozen=True)
class Bench:
    """What all contenders share: the log, the cluster, the environment and the options."""

    log: Sequence[DayFile]
    worker: OneWorker
    env: dict[str, str]
    folder: Path
    measures: bool
    options: argparse.Namespace

    def run(self, name: str) -> Run | None:
        """Runs a contender. Returns None if it fails, after its logs are printed."""
        folder = self.folder / name
        for part in ("out", "scratch"):
            (folder / part).mkdir(parents=True)
        overrides = ["workflow.engine=sql"] if name in ("gpu", "spark_sql") else []
        settings = {"data": str(Path(self.log[0].path).parent.parent), "overrides": overrides}
        task = Task(days_of(self.log), f"{folder}/out", f"{folder}/scratch", "", MIN_COUNT, cores(), settings)
        settle(task.files)
        driver_log, earlier = folder / "driver.log", set(self.worker.executor_logs())
        measured = measure(
            self.command(name, task),
            log=driver_log,
            cores=cores(),
            limit_s=self.options.limit,
            env=self.env,
            cwd=ROOT,
        )
        text = driver_log.read_text(errors="replace")
        executors = [path for path in self.worker.executor_logs() if path not in earlier]
        self.keep(name, [driver_log, *executors])
        if name == "gpu":
            print(left_on_cpu(text), flush=True)
        if measured.returncode or measured.timed_out or measured.out_of_memory:
            say(
                f"{name} failed after {measured.wall_s:.1f} s: exit code {measured.returncode}, "
                f"timed out: {measured.timed_out}, out of memory: {measured.out_of_memory}"
            )
            for path in [driver_log, *executors]:
                say(f"the end of {path}:\n{last_lines(path)}")
            return None
        say(f"{name}: {measured.wall_s:.1f} s")
        report = ours.report(task, text)
        phases = {phase: round(end - start, 2) for phase, (start, end) in report["spans"].items()}
        return Run(
            measured.wall_s, phases, Outcome(report["files"], report["normalised"], report["facts"]), task
        )

    def command(self, name: str, task: Task) -> list[str]:
        """Returns the command of a contender."""
        python = ours.command(task, sys.executable, submitted=False)
        if name == "processes":
            return python
        changed = {"spark.local.dir": task.scratch, "spark.sql.warehouse.dir": f"{task.scratch}/warehouse"}
        if name == "gpu":
            changed |= dict.fromkeys(
                ("spark.driver.extraClassPath", "spark.executor.extraClassPath"), str(self.options.jar)
            )
        changed |= {} if self.measures else _LITTLE_MEMORY
        submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", self.worker.master]
        submit += ["--properties-file", str(ROOT / f"conf/spark/{PROFILES[name]}.conf")]
        submit += [f"--conf={key}={value}" for key, value in changed.items()]
        return [*submit, *(f"--conf={setting}" for setting in self.options.conf), *python[1:]]

    def keep(self, name: str, logs: Sequence[Path]) -> None:
        """Copies the logs of a contender to the folder of the option --logs."""
        if self.options.logs:
            self.options.logs.mkdir(parents=True, exist_ok=True)
            for path in logs:
                parts = path.relative_to(self.folder).parts
                shutil.copy(path, self.options.logs / "-".join([name, *parts[-3:]]))


def main(arguments: Sequence[str] | None = None) -> int:
    gpu = gpu_name()
    options = parse(arguments, gpu is not None)
    names = [name for name in CONTENDERS if name in options.only]
    if "gpu" in names and not options.jar.is_file():
        say(f"the accelerator's jar {options.jar} is missing: `make jars` fetches it, or name it with --jar")
        return 1
    of_machine = {**machine(cores(), ("pyspark", "pyarrow", "pandas")), "gpu": gpu}
    say(f"log of {options.rows:,} rows …")
    log = make_log(CACHE, options.rows, DAYS, processes=min(DAYS, cores()))
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-gpu-etl-", dir=CACHE) as scratch:
        folder = Path(scratch)
        (folder / "cluster").mkdir()
        find_gpus = ROOT / "conf/spark/find_gpus.sh" if gpu else None
        memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
        env = environment(gpu is not None)
        with one_worker(folder / "cluster", cores(), memory_mib, env, find_gpus) as worker:
            bench = Bench(log, worker, env, folder, gpu is not None, options)
            attempts = {name: bench.run(name) for name in names}
        runs = {name: run for name, run in attempts.items() if run is not None}
        found = compare_runs(runs)
    for message in found:
        say(message)
    comparable = gpu is not None and not found
    ratios = {
        name: runs[name].seconds / runs["gpu"].seconds
        if comparable and {name, "gpu"} <= runs.keys()
        else None
        for name in names
        if name != "gpu"
    }
    print_runs(gpu, options.rows, runs, ratios)
    facts = {
        name: {"seconds": round(run.seconds, 2), "rows_per_s": round(options.rows / run.seconds)}
        for name, run in runs.items()
    }
    more: dict[str, Any] = {"rows": options.rows, "parts_s": {name: run.phases for name, run in runs.items()}}
    print(summary_line("gpu_etl", of_machine, facts, {}, ratios, differences=found, **more))
    return 1 if found or len(runs) < len(names) else 0


def parse(arguments: Sequence[str] | None, has_gpu: bool) -> argparse.Namespace:
    default_jar = INSTALLED_JAR if INSTALLED_JAR.exists() else jars.accelerator().path
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS:,} rows")
    parser.add_argument("--rows", type=int, help=f"rows of the log (default {ROWS:,})")
    parser.add_argument("--only", nargs="*", choices=CONTENDERS, help="contenders to run (default: all)")
    parser.add_argument("--jar", type=Path, default=default_jar, help="the accelerator's jar")
    parser.add_argument("--limit", type=float, default=600, help="time limit of a contender in seconds")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the logs of all contenders here")
    parser.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="change a Spark setting"
    )
    options = parser.parse_args(arguments)
    options.rows = options.rows or ((QUICK_ROWS if options.quick else ROWS) if has_gpu else TINY_ROWS)
    options.only = options.only or (CONTENDERS if has_gpu else WITHOUT_GPU)
    return options


def compare_runs(runs: dict[str, Run]) -> list[str]:
    """Returns the differences between what the first run and each other run published."""
    with ProcessPoolExecutor(min(len(runs), cores()) or 1, get_context("spawn")) as pool:
        reading = {
            name: pool.submit(read_published, run.task, f"{run.task.out}/lake", run.outcome)
            for name, run in runs.items()
        }
        published: dict[str, Published] = {name: result.result() for name, result in reading.items()}
    first, *others = [*published]
    return [text for name in others for text in differences(published[first], published[name], name)]


def left_on_cpu(driver_log: str) -> str:
    """Returns a line for each kind of operation that the accelerator left on the CPU, with the reason."""
    reasons = Counter(_LEFT_ON_CPU.findall(driver_log))
    lines = [f"{count:5}  {node}: {reason[:300]}" for (node, reason), count in reasons.most_common()]
    return "\n".join([f"left on the CPU ({len(lines)} kinds):", *lines])


def last_lines(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-_SHOWN_LINES:])


def print_runs(gpu: str | None, rows: int, runs: dict[str, Run], ratios: dict[str, float | None]) -> None:
    if gpu is None:
        print("There is no GPU: the benchmark runs on a tiny log and measures nothing.\n")
    else:
        print(f"{gpu}, {cores()} cores, {rows:,} rows\n")
    lines = []
    for name, run in runs.items():
        ratio = ratios.get(name)
        phases = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in run.phases.items())
        shown = "" if ratio is None else f"{ratio:.2f}"
        lines.append([name, f"{run.seconds:.1f}", f"{rows / run.seconds:,.0f}", shown, phases])
    print(table(["contender", "seconds", "rows/s", "gpu is × faster", "seconds of phases"], lines))


def gpu_name() -> str | None:
    """Returns the name of the first GPU; None if there is none."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return next(iter(done.stdout.splitlines()), None)


def cores() -> int:
    return len(os.sched_getaffinity(0))


def environment(measures: bool) -> dict[str, str]:
    """Returns the environment variables of the contenders and of the cluster."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    python = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
    home = java_home.find()
    java = {"JAVA_HOME": str(home)} if home else {}
    java |= {} if measures else {"JAVA_TOOL_OPTIONS": FEW_COMPILATIONS}
    return {**os.environ, "PYTHONPATH": paths, "SPARK_LOCAL_IP": "127.0.0.1", **python, **java}


def say(text: str) -> None:
    print(f"etl: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
