"""A small lake, the jobs that make it, and what must hold of it after each fault.

The jobs of a run are executed once, undisturbed. The lake is copied before each of them. So a case takes the copy
before a job, disturbs this job, runs it again, and compares the lake with the copy after the job.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import duckdb
import yaml

from jobs.chain.launchers import Stage as Submitted
from jobs.chain.launchers import Submission
from storage import file_io, format_versions
from storage.manifest import MANIFEST_NAME, Manifest
from tests.faults.job_processes import CONFIG, MARK, RUN_DATE, marked, published, wait_until_gone, write_log
from tests.processes import ROOT, environment

LIMIT_S = 300.0  # a process that takes longer hangs
ROWS_A_DAY = 600
CODES = (0, 2, 3, 4)
_SINK = "delivered"


class Problem(Exception):
    """What must not happen. `kind` is one of KINDS."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


KINDS = ("lost rows", "wrong rows", "traceback", "exit code", "hang")


@dataclass(frozen=True)
class Step:
    """A job of the run.

    Attributes:
        job: its name.
        options: arguments after those that all jobs have.
        exact: whether equal inputs give exactly equal rows. Two trainings give nearly equal weights.
    """

    job: str
    options: tuple[str, ...] = ()
    exact: bool = True


STEPS = (
    Step("build_features"),
    Step("train_model", exact=False),
    Step("evaluate_model"),
    Step("build_candidates"),
    Step("score_daily"),
    Step("score_rows"),
    Step("deliver_recommendations"),
    Step("report"),
)
# The whole run in one process, from an empty lake. It makes lists, and does not run score_rows.
NIGHT = Step("nightly", ("--retrain",), exact=False)

Content = Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it wrote."""

    code: int
    seconds: float
    killed: bool
    output: str


@dataclass(frozen=True)
class Before:
    """A job that can be disturbed.

    Attributes:
        step: the job.
        folder: the lake before it, with the folder of the sink.
        seconds: how long it takes.
        was, becomes: what readers see before and after it.
        grows_kib: by how much it makes the lake larger.
    """

    step: Step
    folder: Path
    seconds: float
    was: Content
    becomes: Content
    grows_kib: int = 0


@dataclass
class World:
    """A folder with the raw log, the copies of the lake, and the folders of cases.

    Attributes:
        folder: the folder.
        steps: the jobs of the run, or the first ones.
        jobs: the jobs that can be disturbed; see `prepare`.
        profile: Spark's properties file with which jobs are submitted; None: they run without Spark.
    """

    folder: Path
    steps: Sequence[Step] = STEPS
    jobs: list[Before] = field(default_factory=list)
    profile: Path | None = None

    @property
    def finished(self) -> Path:
        """The lake after all jobs."""
        return self.folder / "finished"

    def prepare(self) -> None:
        """Runs all jobs once, and copies the lake before each of them."""
        write_log(self.folder / "raw", ROWS_A_DAY)
        work = self.folder / "work"
        work.mkdir()
        (self.folder / "before").mkdir()
        done: list[tuple[Step, Path, float, Content]] = []
        for step in self.steps:
            copy = self.folder / "before" / step.job
            copy_lake(work, copy)
            was = contents(work)
            ended = self.run(step, work)
            if ended.code != 0:
                raise RuntimeError(f"{step.job} fails without any fault:\n{ended.output[-3000:]}")
            done.append((step, copy, ended.seconds, was))
        last = contents(work)
        after = [(copy, was) for _, copy, _, was in done[1:]] + [(work, last)]
        self.jobs = [
            Before(step, copy, seconds, was, becomes, kib(changed_copy) - kib(copy))
            for (step, copy, seconds, was), (changed_copy, becomes) in zip(done, after, strict=True)
        ]
        if self.steps == STEPS:
            first, seconds = self.jobs[0], sum(job.seconds for job in self.jobs)
            of_night = {name: seen for name, seen in last.items() if not name.startswith("scores/")}
            self.jobs.append(Before(NIGHT, first.folder, seconds / 2, first.was, of_night, kib(work)))
        shutil.move(work, self.finished)

    def case(self, copied: Path) -> Path:
        """Returns a new folder with a copy of a lake. Its jobs and its log of output are below it."""
        folder = self.folder / f"case-{uuid.uuid4().hex[:8]}"
        copy_lake(copied, folder)
        return folder

    def config(self, folder: Path, **changed: Any) -> Path:
        """Writes the configuration of the lake in a folder."""
        sink = {"kind": "json_lines", "name": "files", "path": str(folder / _SINK)}
        values = {**CONFIG, "lake": str(folder / "lake"), "data": str(self.folder / "raw")}
        train = {**CONFIG["train"], "epochs": 2}
        path = folder / "config.yaml"
        text = yaml.safe_dump({**values, "train": train, "deliver": {"sinks": [sink]}, **changed})
        path.write_text(text, encoding="utf-8")
        return path

    def command(self, step: Step, folder: Path) -> list[str]:
        """Returns the command of a job."""
        config = str(self.config(folder))
        if self.profile is not None:
            stage = Submitted(step.job, RUN_DATE, folder / "log")
            return [*Submission(str(self.profile), config).command(stage), *step.options]
        job = str(ROOT / f"jobs/{step.job}.py")
        return [sys.executable, job, "--config", config, "--run-date", RUN_DATE, *step.options]

    def run(self, step: Step, folder: Path, kill_after_s: float | None = None) -> Ended:
        """Runs a job to its end, or kills it with all its processes."""
        return run(self.command(step, folder), folder, kill_after_s)


def start(command: Sequence[str], folder: Path) -> tuple[subprocess.Popen[bytes], str, Path]:
    """Starts a process. Returns it, the mark in the environment of all its processes, and its output."""
    mark = uuid.uuid4().hex
    output = folder / f"output-{mark[:8]}"
    variables = {**environment(), MARK: mark, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    with output.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=variables,
            cwd=ROOT,
            start_new_session=True,
        )
    return process, mark, output


def end(
    process: subprocess.Popen[bytes], mark: str, output: Path, kill_after_s: float | None = None
) -> Ended:
    """Waits for a process, or kills it with all its processes.

    Raises:
        Problem: the process hangs.
    """
    began, killed = time.monotonic(), False
    try:
        process.wait(LIMIT_S if kill_after_s is None else max(kill_after_s, 0.0))
    except subprocess.TimeoutExpired:
        killed = True
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pid, _ in marked(mark):  # those that have left the process group
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    wait_until_gone(mark)
    text = output.read_text(encoding="utf-8", errors="replace")
    if killed and kill_after_s is None:
        raise Problem("hang", f"a process took more than {LIMIT_S:.0f} s: {text[-1000:]}")
    return Ended(process.returncode, time.monotonic() - began, killed, text)


def run(command: Sequence[str], folder: Path, kill_after_s: float | None = None) -> Ended:
    """Runs a process to its end, or kills it with all its processes."""
    return end(*start(command, folder), kill_after_s)


def copy_lake(folder: Path, copy: Path) -> None:
    """Copies a folder. Files with two names, in `_data` and in dt=…, remain one file in the copy."""
    subprocess.run(["cp", "-a", str(folder), str(copy)], check=True)


def kib(folder: Path) -> int:
    """Returns the size of the lake in a folder, in KiB of whole pages."""
    sizes = (path.stat().st_size for path in (folder / "lake").rglob("*") if path.is_file())
    return sum(-(-size // 4096) * 4 for size in sizes)


# What must hold


def require_typed(ended: Ended, codes: Sequence[int] = CODES) -> None:
    """Raises Problem unless a process ended with one of the exit codes, and without a traceback."""
    if "Traceback (most recent call last)" in ended.output:
        raise Problem("traceback", ended.output[-2000:])
    if ended.code not in codes:
        raise Problem("exit code", f"the exit code is {ended.code}: {ended.output[-1500:]}")


def require_whole(folder: Path, job: Before, after: str) -> None:
    """Raises Problem unless readers see each partition as it was, or as it becomes.

    Args:
        folder: the folder of the case.
        job: the job that was disturbed.
        after: what has happened, for the message.
    """
    try:
        seen = {name: digest for name, (digest, _) in contents(folder).items()}
    except (ValueError, OSError, duckdb.Error) as error:
        raise Problem("wrong rows", f"{after}: a manifest does not describe its files: {error}") from error
    for name, (digest, _) in job.was.items():
        if name not in seen:
            raise Problem("lost rows", f"{after}: {name} is gone")
        if seen[name] not in (digest, job.becomes.get(name, ("", ""))[0]):
            raise Problem("wrong rows", f"{after}: {name} is neither old nor new")
    for name, digest in seen.items():
        if name not in job.was and digest != job.becomes.get(name, ("", ""))[0]:
            raise Problem("wrong rows", f"{after}: {name} has content that no undisturbed run has")


def require_equal(folder: Path, expected: Content, exact: bool, after: str) -> None:
    """Raises Problem unless a lake has the tables, and with `exact` the rows, of the undisturbed run."""
    seen = contents(folder)
    if lost := sorted(expected.keys() - seen.keys()):
        raise Problem("lost rows", f"{after}: {lost} are missing")
    for name, (digest, rows) in seen.items():
        wanted = expected.get(name, ("none", "none"))
        if digest != wanted[0] or (exact and rows != wanted[1]):
            raise Problem("wrong rows", f"{after}: {name} differs from that of an undisturbed run")


def contents(folder: Path) -> dict[str, tuple[str, str]]:
    """Maps each published partition to the digest of its manifest and a digest of its rows in any order.

    Raises:
        ValueError: a manifest does not describe its files.
    """
    lake, sink = folder / "lake", folder / _SINK
    known = published(lake) if lake.exists() else {}
    # The digest of a delivery depends on the folder of the sink, which is that of the case.
    seen = {
        name: ("" if name.startswith("deliveries/") else digest, _rows(lake / name))
        for name, digest in known.items()
    }
    for path in sorted(sink.rglob(MANIFEST_NAME)) if sink.exists() else []:
        manifest = _manifest(path)
        lines = sorted(line for entry in manifest.files for line in _lines(path.parent / entry.path))
        name = f"{_SINK}/{path.parent.name}"
        seen[name] = (manifest.digest, sha256(b"".join(lines)).hexdigest())
    return seen


def _manifest(path: Path) -> Manifest:
    stored = file_io.read_json(str(path))
    return Manifest.from_json(format_versions.MANIFEST.check(stored, str(path)))


def _rows(partition: Path) -> str:
    """Returns a digest of the rows of a partition, which does not depend on their order."""
    manifest = _manifest(partition / MANIFEST_NAME)
    files = [str(partition / entry.path) for entry in manifest.files]
    if not files:
        return "no files"
    if not all(file.endswith(".parquet") for file in files):
        return sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()
    query = "SELECT count(*), sum(CAST(hash(r) AS HUGEINT)) FROM read_parquet(?, hive_partitioning = false) r"
    with duckdb.connect(config={"threads": 1}) as database:
        return json.dumps(database.execute(query, [files]).fetchone(), default=str)


def _lines(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    yield from (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines(keepends=True)
