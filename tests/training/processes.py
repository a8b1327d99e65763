"""Drivers and Spark clusters as processes of their own, for tests that kill some of them."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from jobs.session import read_profile
from training.plan import TrainPlan

ROOT = Path(__file__).parents[2]
RANK = "horovod.spark.task.gloo_exec_fn"
GPUS = ("5", "7")
# A checkpoint is complete when its index is there, or its only file.
_WHOLE = re.compile(r"step-\d+\.(json|safetensors)")

Found = TypeVar("Found")


def wait_for(
    what: str, look: Callable[[], Found | None], seconds: float = 300, poll_s: float = 0.02
) -> Found:
    """What `look` finds, asked so often; AssertionError when it has found nothing for so many seconds."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what}: not seen in {seconds:.0f} s"
        time.sleep(poll_s)
    return found


def wait_until_gone(processes: list[int]) -> None:
    """AssertionError when one of these process ids is still there after a minute."""
    wait_for("the end of all processes", lambda: not any(map(_lives, processes)), 60, poll_s=0.2)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}


@dataclass
class Driver:
    """A running tests.training.drive. `roots` are the processes below which its ranks are."""

    process: subprocess.Popen[bytes]
    folder: Path
    roots: list[int]

    def ranks(self) -> dict[int, psutil.Process]:
        """Rank (the one it started with) → its process."""
        found = {}
        for root in self.roots:
            with suppress(psutil.NoSuchProcess):
                for process in psutil.Process(root).children(recursive=True):
                    with suppress(psutil.Error):
                        if process.cmdline()[1:3] == ["-m", RANK]:
                            found[int(process.environ()["HOROVOD_RANK"])] = process
        return found

    def kill_at_checkpoint(self, plan: TrainPlan, rank: int) -> None:
        """SIGKILL to a rank, as soon as the training has a checkpoint."""
        process = wait_for(f"rank {rank}", lambda: self.ranks().get(rank), poll_s=0.5)
        self.wait_for_checkpoint(plan)
        process.kill()

    def wait_for_checkpoint(self, plan: TrainPlan) -> None:
        def look() -> bool:
            assert self.process.poll() is None, self.log[-6000:]
            files = Path(plan.checkpoint_path).glob("step-*")
            return any(_WHOLE.fullmatch(each.name) for each in files)

        wait_for("a checkpoint", look)

    def ended(self, name: str) -> dict[str, Any]:
        """How a training ended."""
        path = self.folder / f"{name}.json"

        def look() -> bool:
            assert self.process.poll() is None or path.exists(), self.log[-6000:]
            return path.exists()

        wait_for(f"the end of {name}", look)
        return dict(json.loads(path.read_text()))

    def steps(self, name: str) -> list[int]:
        """The steps that rank 0 reported, in the order in which the driver heard of them."""
        return [json.loads(line)["step"] for line in (self.folder / f"{name}.progress").open()]

    def processes(self) -> list[int]:
        """The driver's JVM, and the ranks."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        return [each.pid for each in (*below, *self.ranks().values())]

    @property
    def log(self) -> str:
        return (self.folder / "driver.log").read_text()


@contextmanager
def driving(
    folder: Path,
    plans: Mapping[str, TrainPlan],
    settings: Mapping[str, str],
    workers: list[int] | None = None,
) -> Iterator[Driver]:
    """Trains these plans, one after the other. At the end the driver and its children are gone, whatever happened."""
    profile = read_profile(ROOT / "conf/spark/local.conf")
    scratch = {
        "spark.local.dir": str(folder / "scratch"),
        "spark.driver.memory": "1g",
        "spark.ui.showConsoleProgress": "false",
    }
    (folder / "settings.json").write_text(json.dumps({**profile, **scratch, **settings}))
    for name, plan in plans.items():
        (folder / f"{name}.plan").write_bytes(pickle.dumps(plan))
    with (folder / "driver.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.training.drive", str(folder), *plans],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            env=environment(),
            start_new_session=True,
        )
    try:
        yield Driver(process, folder, workers or [process.pid])
        process.wait(timeout=60)
    finally:
        _kill_tree(process)


@dataclass(frozen=True)
class Cluster:
    """A standalone cluster. Its workers keep what executors write below `folder`."""

    master: str
    workers: list[int]
    folder: Path

    @property
    def settings(self) -> dict[str, str]:
        return {
            "spark.master": self.master,
            "spark.executor.memory": "512m",
            "spark.executor.resource.gpu.amount": str(len(GPUS)),
            "spark.task.resource.gpu.amount": "1",
            "spark.task.maxFailures": "4",
        }

    def log_lines(self, containing: str) -> list[tuple[str, str]]:
        """(executor's folder, line) of what the ranks of the last application logged."""
        logs = sorted(self.folder.glob("work-*/app-*/*/stderr"))
        last = max((path.parts[-3] for path in logs), default="")
        return [
            (str(path.parent), line)
            for path in logs
            if path.parts[-3] == last
            for line in path.read_text().splitlines()
            if containing in line
        ]


@contextmanager
def standalone_cluster(folder: Path, workers: int, cores: int) -> Iterator[Cluster]:
    """A master and so many workers on loopback, each with these cores and the two GPUs of a discovery script that lies."""
    script = folder / "find_gpus.sh"
    script.write_text(f"#!/bin/sh\necho '{json.dumps({'name': 'gpu', 'addresses': GPUS})}'\n")
    script.chmod(0o755)
    (folder / "worker.conf").write_text(
        f"spark.worker.resource.gpu.amount {len(GPUS)}\nspark.worker.resource.gpu.discoveryScript {script}\n"
    )
    port = _free_port()
    master = f"spark://127.0.0.1:{port}"
    started = [_start(folder, "master.Master", "--port", str(port))]
    try:
        wait_for("the master", lambda: _answers(port))
        for index in range(workers):
            own = [
                "--work-dir",
                str(folder / f"work-{index}"),
                "--properties-file",
                str(folder / "worker.conf"),
            ]
            started.append(
                _start(folder, "worker.Worker", "--cores", str(cores), "--memory", "1g", *own, master)
            )
        yield Cluster(master, [each.pid for each in started[1:]], folder)
    finally:
        for each in reversed(started):
            _kill_tree(each)


def _start(folder: Path, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [str(Path(sys.executable).parent / "spark-class"), f"org.apache.spark.deploy.{kind}"]
    with (folder / f"{kind}.log").open("ab") as log:
        return subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--webui-port", "0", *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**environment(), "SPARK_DAEMON_MEMORY": "256m"},
            start_new_session=True,
        )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _kill_tree(process: subprocess.Popen[bytes]) -> None:
    with suppress(psutil.NoSuchProcess):
        below = psutil.Process(process.pid).children(recursive=True)
        for each in below:
            with suppress(psutil.NoSuchProcess):
                each.kill()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
