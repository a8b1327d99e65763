"""A Spark standalone cluster of real processes on loopback: a master, and workers that start executors."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from local_airflow.home import free_port
from tests.processes import die_with_parent, environment, kill_tree, wait_for, wait_until_gone

# The GPUs that each worker's discovery script says it has.
GPUS = ("5", "7")
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_WORKER_MEMORY = "2g"


@dataclass
class Cluster:
    """A standalone cluster. Its workers keep what executors write below `folder`.

    Attributes:
        spark_class: the script that starts Spark's daemons, and so the pyspark they run.
        variables: the environment of its daemons, which executors and their Python workers inherit.
        security: the settings that its daemons have, and that applications need.
    """

    port: int
    cores: int
    folder: Path
    spark_class: Path
    variables: Mapping[str, str]
    security: Mapping[str, str]
    _workers: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    @property
    def workers(self) -> list[int]:
        """Process ids."""
        return [worker.pid for worker in self._workers.values()]

    @property
    def with_gpus(self) -> dict[str, str]:
        """Settings of an application whose tasks have a GPU each."""
        return {
            "spark.master": self.master,
            "spark.executor.memory": "512m",
            "spark.executor.resource.gpu.amount": str(len(GPUS)),
            "spark.task.resource.gpu.amount": "1",
            "spark.task.maxFailures": "4",
        }

    def start_daemon(self, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [str(self.spark_class), f"org.apache.spark.deploy.{kind}"]
        # As for drivers (conf/spark/local.conf, setup/env.sh): most of their work is to start.
        quick = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 {self.variables.get('SPARK_SUBMIT_OPTS', '')}"
        with (self.folder / f"{kind}.log").open("ab") as log:
            return subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--webui-port", "0", *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**self.variables, "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": quick},
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def start_worker(self, index: int) -> None:
        """Starts the worker of this number, and returns when the master has heard of it."""
        before = self._registered()
        options = [
            *("--work-dir", str(self.folder / f"work-{index}")),
            *("--properties-file", str(self.folder / "worker.conf")),
            *("--cores", str(self.cores), "--memory", _WORKER_MEMORY),
        ]
        self._workers[index] = self.start_daemon("worker.Worker", *options, self.master)
        wait_for(f"worker {index}", lambda: self._registered() > before, 60, poll_s=0.1)

    def _registered(self) -> int:
        return (self.folder / "master.Master.log").read_text().count("Registering worker")

    def executors(self, of_worker: int | None = None) -> list[psutil.Process]:
        """The JVMs in which tasks run: of all workers, or of the one with this process id."""
        processes = []
        for pid in self.workers if of_worker is None else [of_worker]:
            with suppress(psutil.NoSuchProcess):
                for process in psutil.Process(pid).children(recursive=True):
                    with suppress(psutil.Error):
                        if EXECUTOR in process.cmdline():
                            processes.append(process)
        return processes

    def kill_worker(self, index: int) -> None:
        """SIGKILL to a worker's JVM; its executors see that and end by themselves."""
        worker = self._workers.pop(index)
        below = psutil.Process(worker.pid).children(recursive=True)
        worker.kill()
        worker.wait()
        wait_until_gone([child.pid for child in below])

    def applications(self) -> list[str]:
        """The ids of all applications that got an executor, in the order in which they came."""
        return sorted({path.name for path in self.folder.glob("work-*/app-*")})

    def log_lines(self, containing: str, application: str | None = None) -> list[tuple[str, str]]:
        """(executor's folder, line) of the executors' logs of an application; by default, of the last one."""
        wanted = application or max(self.applications(), default="none")
        return [
            (str(path.parent), line)
            for path in sorted(self.folder.glob(f"work-*/{wanted}/*/stderr"))
            for line in path.read_text().splitlines()
            if containing in line
        ]


@contextmanager
def standalone_cluster(
    folder: Path,
    workers: int = 2,
    cores: int = 2,
    *,
    spark_class: Path | None = None,
    variables: Mapping[str, str] | None = None,
    secret: str | None = None,
) -> Iterator[Cluster]:
    """A master and so many workers on loopback. A discovery script claims that each has two GPUs.

    Args:
        cores: of each worker.
        spark_class, variables: see Cluster; default: the installed pyspark, and our packages on its path.
        secret: what daemons and applications must know; None: everybody may use the cluster.
    """
    script = folder / "find_gpus.sh"
    script.write_text(f"#!/bin/sh\necho '{json.dumps({'name': 'gpu', 'addresses': GPUS})}'\n")
    script.chmod(0o755)
    security = _security(secret)
    gpus = {
        "spark.worker.resource.gpu.amount": str(len(GPUS)),
        "spark.worker.resource.gpu.discoveryScript": str(script),
    }
    for name, settings in (("master", security), ("worker", {**security, **gpus})):
        lines = (f"{key} {value}\n" for key, value in settings.items())
        (folder / f"{name}.conf").write_text("".join(lines))
    launcher = spark_class or Path(sys.executable).parent / "spark-class"
    cluster = Cluster(free_port(), cores, folder, launcher, variables or environment(), security)
    options = ["--port", str(cluster.port), "--properties-file", str(folder / "master.conf")]
    started = [cluster.start_daemon("master.Master", *options)]
    try:
        wait_for("the master", lambda: _answers(cluster.port), 60)
        for index in range(workers):
            cluster.start_worker(index)
        yield cluster
    finally:
        for process in (*cluster._workers.values(), *started):
            kill_tree(process)


def _security(secret: str | None) -> dict[str, str]:
    """The settings of docs/clusters.md for daemons."""
    if secret is None:
        return dict.fromkeys(("spark.authenticate", "spark.network.crypto.enabled"), "false")
    page = (Path(__file__).parents[1] / "docs/clusters.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```properties\n(spark\.authenticate .*?)```", page, re.DOTALL)
    settings = dict(line.split(maxsplit=1) for line in block.splitlines())
    assert settings["spark.authenticate.secret"] == "SECRET"
    return {**settings, "spark.authenticate.secret": secret}


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
