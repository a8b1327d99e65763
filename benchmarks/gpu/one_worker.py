"""Starts a Spark standalone cluster of one worker on this machine.

Spark's local mode has no executors, so it cannot give a GPU to one. A profile for clusters runs unchanged on
this cluster.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_START_S, _STOP_S = 60.0, 20.0
_HOST = "127.0.0.1"
# For JVMs that run only for seconds, in which the second compiler would cost more time than it saves.
FEW_COMPILATIONS = "-XX:TieredStopAtLevel=1"


class NotStarted(Exception):
    """An error: the master or the worker did not start. The message has the end of its log."""


@dataclass(frozen=True)
class OneWorker:
    """A running cluster.

    Attributes:
        master: the URL for spark-submit.
        folder: the folder of logs and of what executors write.
    """

    master: str
    folder: Path

    def executor_logs(self) -> list[Path]:
        """Returns the logs of all executors, those of the newest application last."""
        return sorted(self.folder.glob("work/app-*/*/std*"))


@contextmanager
def one_worker(
    folder: Path, cores: int, memory_mib: int, env: Mapping[str, str], find_gpus: Path | None
) -> Iterator[OneWorker]:
    """Starts the cluster, and stops it at the end of the block.

    Args:
        folder: an empty folder for its files.
        cores: number of cores that the worker gives to executors.
        memory_mib: memory that the worker gives to executors.
        env: environment variables of master, worker and executors.
        find_gpus: a discovery script. The worker gives one of its GPUs to executors. None: it has no GPU.

    Raises:
        NotStarted: the master or the worker did not start.
    """
    port = _free_port()
    master = f"spark://{_HOST}:{port}"
    conf = folder / "worker.conf"
    conf.write_text(
        f"spark.worker.resource.gpu.amount 1\nspark.worker.resource.gpu.discoveryScript {find_gpus}\n"
        if find_gpus
        else "",
        encoding="utf-8",
    )
    with ExitStack() as running:
        running.enter_context(_daemon("master.Master", folder, env, "Starting Spark master", "--port", port))
        running.enter_context(
            _daemon(
                "worker.Worker", folder, env, "Successfully registered with master",
                "--properties-file", conf, "--work-dir", folder / "work",
                "--cores", cores, "--memory", f"{memory_mib}m", master,
            )
        )  # fmt: skip
        yield OneWorker(master, folder)


@contextmanager
def _daemon(
    kind: str, folder: Path, env: Mapping[str, str], started: str, *options: object
) -> Iterator[None]:
    """Runs one of Spark's daemons. Waits until its log has the text `started`."""
    launcher = Path(sys.executable).with_name("spark-class")
    command = [launcher, f"org.apache.spark.deploy.{kind}", "--host", _HOST, "--webui-port", 0, *options]
    log = folder / f"{kind}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=dict(env),
        )
    try:
        deadline = time.monotonic() + _START_S
        while started not in log.read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise NotStarted(f"{kind}:\n{log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
