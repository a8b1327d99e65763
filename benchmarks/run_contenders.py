"""The contenders of benchmarks/run.py: a run of nightly, and the plain script, on the same generated log."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import Measured, measure, settle
from benchmarks.report import GIB
from setup.console import cache_folder
from storage.job_summary import JobSummary
from storage.manifest import data_files, is_published, read_manifest
from storage.paths import LakePaths

ROOT = Path(__file__).resolve().parent.parent
CACHE = cache_folder() / "benchmarks/run"
CONFIG, PROFILE = "benchmarks/run.yaml", "conf/spark/local.conf"
# The first run needs eight days, and lists of the second run are compared with the day after it.
FIRST_DAY, DAYS = "2026-01-02", 10
FRESH_DATE, WARM_DATE, LAST_DAY = "2026-01-09", "2026-01-10", "2026-01-11"
ROWS_PER_DAY, USERS = 60_000, 4_000
DISK_BYTES_PER_SCALE = 2**29
_LIMIT_S_PER_SCALE = 1800.0
LISTS = ["user_id", "item_id"]


class RunFailed(Exception):
    """An error: a contender or the generator of the log failed. The message has the end of its output."""


@dataclass(frozen=True)
class Run:
    """The resources and the result of one run of a contender.

    Attributes:
        measured: the resources of its process tree.
        parts: maps each part of the run to its seconds.
        kept, dropped: number of rows of the window that the contender used, and that it dropped.
        auc, baseline_auc: AUC of the DLRM and of the logistic regression on the test day.
        lists: the lists, with the columns `user_id` and `item_id`.
    """

    measured: Measured
    parts: Mapping[str, float]
    kept: int
    dropped: int
    auc: float
    baseline_auc: float
    lists: pa.Table


class Contender(Protocol):
    """A contender with a folder of its own.

    Attributes:
        name: its name in the output.
    """

    name: str

    def start(self) -> None:
        """Empties the folder. The next run is fresh."""
        ...

    def run(self, run_date: str, warm: bool) -> Run:
        """Runs the contender and waits for its end. A warm run continues from the run before."""
        ...

    def end(self) -> None:
        """Deletes the files of the runs."""
        ...


def make_log(scale: int) -> Path:
    """Generates a log, unless it is in the cache. Returns the lake that has only this log.

    Args:
        scale: multiple of the rows and users of the demo. The number of items stays.
    """
    lake = CACHE / f"{scale}x/log"
    if is_published(LakePaths(str(lake)).raw.partition(LAST_DAY)):
        return lake
    shutil.rmtree(lake, ignore_errors=True)
    settings = {
        "lake": lake,
        "generate.days": DAYS,
        "generate.rows_per_day": ROWS_PER_DAY * scale,
        "generate.users": USERS * scale,
    }
    job = [str(Path(sys.executable).parent / "spark-submit"), "--properties-file", PROFILE]
    job += ["jobs/generate_clicks.py", "--config", CONFIG, "--run-date", FIRST_DAY]
    for key, value in settings.items():
        job += ["--set", f"{key}={value}"]
    done = subprocess.run(job, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunFailed(f"generate_clicks ended with exit code {done.returncode}:\n{done.stderr[-2000:]}")
    return lake


def raw_files(log: Path) -> list[str]:
    """Returns the files of a log."""
    return sorted(str(path) for path in (log / "raw").glob("dt=*/*.tsv"))


class Nightly:
    """Our job nightly with --retrain, on a lake that has only the raw log at the start.

    Args:
        log: the lake that has the log.
        folder: the folder of the lake of the runs.
        scale: the scale of the log.
        cores: number of cores to which the processes are pinned.
    """

    name = "nightly"

    def __init__(self, log: Path, folder: Path, scale: int, cores: int) -> None:
        self._log, self._folder, self._scale, self._cores = log, folder, scale, cores
        self._lake = folder / "lake"

    def start(self) -> None:
        """See `Contender.start`. The log is not copied: the new lake has hard links to its files."""
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._log / "raw", self._lake / "raw", copy_function=os.link)

    def run(self, run_date: str, warm: bool) -> Run:
        """See `Contender.run`. Without a champion in the lake, a run of nightly is fresh."""
        command = [sys.executable, "jobs/nightly.py", "--config", CONFIG, "--run-date", run_date, "--retrain"]
        command += [
            "--set",
            f"lake={self._lake}",
            "--set",
            f"train.retrain.start={'warm' if warm else 'auto'}",
        ]
        output = self._folder / "nightly.log"
        limit_s = _LIMIT_S_PER_SCALE * self._scale
        measured = measured_run(self.name, command, output, raw_files(self._log), self._cores, limit_s)
        summary, trained = JobSummary.in_log(output), self._summary_of(run_date, "train_model")
        if summary is None or summary.rows_in is None:
            raise RunFailed(f"nightly wrote no job summary to {output}")
        dropped = sum((summary.dropped or {}).values())
        partition = LakePaths(str(self._lake)).recommendations.partition(run_date)
        files = data_files(partition, read_manifest(partition))
        return Run(
            measured=measured,
            parts={stage: seconds for stage, seconds in summary.seconds.items() if stage != "total"},
            kept=summary.rows_in - dropped,
            dropped=dropped,
            auc=trained.facts["test"]["auc"],
            baseline_auc=trained.facts["baselines"]["logistic_regression"]["test"]["auc"],
            lists=pa.concat_tables(pq.read_table(file, columns=LISTS, partitioning=None) for file in files),
        )

    def end(self) -> None:
        """See `Contender.end`."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _summary_of(self, run_date: str, stage: str) -> JobSummary:
        log = self._lake / f"logs/dt={run_date}/{stage}.log"
        summary = JobSummary.in_log(log)
        if summary is None:
            raise RunFailed(f"{stage} wrote no job summary to {log}")
        return summary


class PlainScript:
    """The script benchmarks/peers/plain_run.py. The arguments are those of `Nightly`."""

    name = "plain_run"

    def __init__(self, log: Path, folder: Path, scale: int, cores: int) -> None:
        self._log, self._folder, self._scale, self._cores = log, folder, scale, cores

    def start(self) -> None:
        """See `Contender.start`."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)

    def run(self, run_date: str, warm: bool) -> Run:
        """See `Contender.run`."""
        command = [sys.executable, "-m", "benchmarks.peers.plain_run", "--raw", str(self._log / "raw")]
        command += ["--run-date", run_date, "--out", str(self._folder), "--threads", str(self._cores)]
        output = self._folder / "plain_run.log"
        command += ["--warm"] if warm else []
        limit_s = _LIMIT_S_PER_SCALE * self._scale
        measured = measured_run(self.name, command, output, raw_files(self._log), self._cores, limit_s)
        facts = json.loads(output.read_text().splitlines()[-1])
        lists = self._folder / f"recommendations-{run_date}.parquet"
        return Run(
            measured=measured,
            parts=facts["laps"],
            kept=facts["rows"],
            dropped=facts["dropped"],
            auc=facts["auc"],
            baseline_auc=facts["auc_logistic"],
            lists=pq.read_table(lists, columns=LISTS),
        )

    def end(self) -> None:
        """See `Contender.end`."""
        shutil.rmtree(self._folder, ignore_errors=True)


def measured_run(
    name: str, command: Sequence[str], output: Path, files: Sequence[str], cores: int, limit_s: float
) -> Measured:
    """Runs a command on files that are in the file cache, with the environment variables that users have.

    Raises:
        RunFailed: the command failed or did not end within `limit_s`; the message begins with `name`.
    """
    settle(files)
    measured = measure(command, log=output, cores=cores, limit_s=limit_s, env=_environment(), cwd=ROOT)
    if measured.timed_out:
        raise RunFailed(f"{name} did not end within {limit_s:.0f} s")
    if measured.out_of_memory or measured.returncode == -signal.SIGKILL:
        memory = f"{measured.peak_rss_bytes / GIB:.1f} GiB"
        raise RunFailed(
            f"{name} was killed after {measured.wall_s:.0f} s with {memory} of memory in use"
            f"{': memory ran out' if measured.out_of_memory else ''}"
        )
    if measured.returncode:
        tail = "\n".join(output.read_text(errors="replace").splitlines()[-25:])
        raise RunFailed(f"{name} ended with exit code {measured.returncode}:\n{tail}")
    return measured


@cache
def _environment() -> dict[str, str]:
    """Returns the environment variables of all processes: those of setup/env.sh, as users have them.

    Python may store the code that it compiles.
    """
    shell = ["bash", "-c", ". setup/env.sh && env -0"]
    printed = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    env = dict(entry.split("=", 1) for entry in printed.split("\0") if "=" in entry)
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env | {"PYTHONPATH": str(ROOT)}
