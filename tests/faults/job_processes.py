"""Real jobs as processes on a tiny log, undisturbed or killed; and what must hold of a lake at any time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from jobs.chain.launchers import Stage, Submission, environment
from storage import file_io, format_versions
from storage.manifest import MANIFEST_NAME, Manifest

ROOT = Path(__file__).parents[2]
RUN_DATE = "2026-01-04"
DAYS = [f"2026-01-0{day}" for day in range(1, 5)]
MARK = "NIGHTRANK_TEST_RUN"

CONFIG: dict[str, Any] = {
    "name": "tiny",
    "log": {
        "path": "{data}/dt={date}/*.tsv",
        "format": "tsv",
        "columns": [
            {"name": "label", "type": "int"},
            {"name": "age", "type": "int"},
            {"name": "price", "type": "int"},
            {"name": "user", "type": "string"},
            {"name": "item", "type": "string"},
        ],
        "label": {"column": "label"},
    },
    "keys": {"user": "user", "item": "item"},
    "features": [
        {"columns": ["age", "price"], "kind": "dense", "ops": [{"fill": {"value": 0}}, "normalize"]},
        {"columns": ["user", "item"], "kind": "categorical", "ops": [{"categorify": {"min_count": 2}}]},
    ],
    "scopes": {"user": ["age", "user"], "item": ["price", "item"]},
    "split": {"by": "day", "train_days": 2, "validation_days": 1, "test_days": 1},
    "output": {"row_group_rows": 250},
    "model": {"architecture": "dlrm", "embedding_dim": 4, "bottom_mlp": [8, 4], "top_mlp": [8]},
    "train": {"num_shards": 4, "global_batch_size": 128, "epochs": 8, "checkpoint_every_steps": 20},
    "score": {"k": 5},
}


def write_log(folder: Path, rows_a_day: int = 2000, seed: int = 7) -> None:
    """Days of clicks: users like items whose number is near theirs; one line in a hundred does not parse."""
    draw = random.Random(seed)
    for day in DAYS:
        lines = []
        for _ in range(rows_a_day):
            user, item = draw.randrange(150), draw.randrange(40)
            clicked = draw.random() < (0.7 if abs(user % 40 - item) < 8 else 0.2)
            age = "" if draw.random() < 0.05 else "old" if draw.random() < 0.01 else str(20 + user % 50)
            lines.append(f"{int(clicked)}\t{age}\t{item * 3}\tuser {user}\titem {item}\n")
        (folder / f"dt={day}").mkdir(parents=True)
        (folder / f"dt={day}/part-0.tsv").write_text("".join(lines))


def write_config(folder: Path, name: str) -> Path:
    """The configuration of one lake; the raw log is shared, so that two lakes must come out equal."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, "lake": str(folder / name), "data": str(folder / "raw")}))
    return path


@dataclass(frozen=True)
class Ended:
    """How a job ended. `seconds` is how long it lived; `log` what it wrote."""

    killed: bool
    exit_code: int
    seconds: float
    log: Path


def profile_with_retries(folder: Path) -> Path:
    """The local profile, but that a task is tried four times, as on a cluster."""
    lines = (ROOT / "conf/spark/local.conf").read_text().splitlines()
    kept = [line for line in lines if not line.startswith("spark.master ")]
    path = folder / "retries.conf"
    path.write_text("\n".join([*kept, "spark.master local[2,4]", ""]))
    return path


def kill_one_worker(mark: str, over: threading.Event) -> None:
    """SIGKILLs the first Python worker of the job with the mark, soon after Spark's daemon forked it."""
    daemons: list[int] = []
    while not daemons and not over.wait(0.02):
        daemons = [pid for pid, command in marked(mark) if "worker_daemon" in command]
    while not over.wait(0.002):
        for daemon in daemons:
            with suppress(OSError):
                for child in Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split():
                    time.sleep(0.02)
                    os.kill(int(child), signal.SIGKILL)
                    return


def run_job(
    job: str,
    config: Path,
    kill_after_s: float | None = None,
    *,
    profile: Path = ROOT / "conf/spark/local.conf",
    kill_worker: bool = False,
) -> Ended:
    """Runs a job by spark-submit; on request kills its process group later, or one of its Python workers.

    Raises:
        TimeoutError: ten seconds after it was killed, some process of it is still there.
    """
    mark = uuid.uuid4().hex
    log = config.parent / f"{job}-{mark[:6]}.log"
    command = Submission(str(profile), str(config)).command(Stage(job, RUN_DATE, log))
    start = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**environment(), MARK: mark},
            cwd=ROOT,
            start_new_session=True,
        )
    killed, over = False, threading.Event()
    killer = threading.Thread(target=kill_one_worker, args=(mark, over))
    if kill_worker:
        killer.start()
    try:
        process.wait(timeout=kill_after_s if kill_after_s is not None else 240)
    except subprocess.TimeoutExpired:
        killed = kill_after_s is not None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        over.set()
        if kill_worker:
            killer.join()
    seconds = time.monotonic() - start
    wait_until_gone(mark)
    return Ended(killed, process.returncode, seconds, log)


def wait_until_gone(mark: str) -> None:
    deadline = time.monotonic() + 10
    while left := list(marked(mark)):
        if time.monotonic() > deadline:
            for pid, _ in left:
                os.kill(pid, signal.SIGKILL)
            raise TimeoutError(f"processes of a job outlived it: {left}")
        time.sleep(0.2)


def marked(mark: str) -> Iterator[tuple[int, str]]:
    """(process id, command) of every process that inherited the mark in its environment."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                    yield int(folder.name), (folder / "cmdline").read_text().replace("\0", " ")[:200]
            except (OSError, ProcessLookupError):
                continue


def published(lake: Path) -> dict[str, str]:
    """Partition → digest of all that readers can see, after checking that every manifest tells the truth."""
    digests = {}
    for path in sorted(lake.rglob(MANIFEST_NAME)):
        stored = file_io.read_json(str(path))
        manifest = Manifest.from_json(format_versions.MANIFEST.check(stored, str(path)))
        for entry in manifest.files:
            footer = pq.ParquetFile(path.parent / entry.path).metadata
            groups = tuple(footer.row_group(index).num_rows for index in range(footer.num_row_groups))
            if (footer.num_rows, groups) != (entry.rows, entry.row_groups):
                raise ValueError(f"{path} says {entry}, the file holds {groups}")
        if stored["digest"] != manifest.digest:
            raise ValueError(f"{path} holds the digest {stored['digest']} of other content")
        digests[str(path.parent.relative_to(lake))] = manifest.digest
    return digests
