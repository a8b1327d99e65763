"""A YARN of real processes on loopback: an HDFS, a resource manager, and node managers that start containers."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import psutil
import pyspark

from local_airflow.home import free_port
from setup import jars, java_home
from tests.etl.lakes import servers
from tests.processes import die_with_parent, kill_tree, wait_for

EXECUTOR = "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"
NODES = 2
NODE_MEMORY_MB, NODE_CORES = 3072, 4
_SERVERS = "org.apache.hadoop.yarn.server"
# Hadoop 3.3 defines classes at run time (Guice), which Java 17 allows only with this option.
_OPENS = ("--add-opens=java.base/java.lang=ALL-UNNAMED",)
_QUEUE = "nightly"  # that of conf/spark/on-yarn.conf


@dataclass(frozen=True)
class Yarn:
    """A running YARN.

    Attributes:
        folder: contains the files that the node managers and their containers write.
        configuration: the folder for HADOOP_CONF_DIR.
        hdfs: the root of its default file system, hdfs://127.0.0.1:port.
        node_managers: their process ids.
    """

    folder: Path
    configuration: Path
    hdfs: str
    node_managers: tuple[int, ...]

    def applications(self) -> list[str]:
        """The ids of all applications that got a container, in the order in which they came."""
        return sorted({path.name for path in self.folder.glob("node-*/logs/application_*")})

    def log_lines(self, containing: str, application: str) -> list[tuple[Path, str]]:
        """(container's log, line) of an application."""
        return [
            (path, line)
            for path in sorted(self.folder.glob(f"node-*/logs/{application}/*/std*"))
            for line in path.read_text(errors="replace").splitlines()
            if containing in line
        ]

    def executors(self, application: str) -> dict[str, psutil.Process]:
        """The JVMs in which tasks of an application run, by the name of their container."""
        processes = {}
        for pid in self.node_managers:
            with suppress(psutil.NoSuchProcess):
                for process in psutil.Process(pid).children(recursive=True):
                    with suppress(psutil.Error):
                        words = process.cmdline()
                        # The shells that start a container have the whole command in one word.
                        if EXECUTOR in words and application in words:
                            processes[process.environ()["CONTAINER_ID"]] = process
        return processes


@contextmanager
def yarn_cluster(folder: Path) -> Iterator[Yarn]:
    """A YARN with two node managers, a queue `nightly` and an HDFS. See `missing` in servers.py."""
    paths = servers.jar_paths(jars.yarn_servers())
    java = java_home.find()
    assert java is not None, "there is no Java 17"
    with servers.hdfs(folder, paths) as root:
        ports = {name: free_port() for name in ("", ".scheduler", ".resource-tracker", ".admin", ".webapp")}
        settings = {
            "yarn.resourcemanager.hostname": "127.0.0.1",
            **{f"yarn.resourcemanager{name}.address": f"127.0.0.1:{port}" for name, port in ports.items()},
            "yarn.scheduler.minimum-allocation-mb": "64",
            "yarn.scheduler.maximum-allocation-mb": str(NODE_MEMORY_MB),
            "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "100",
        }
        queues = {
            "yarn.scheduler.capacity.root.queues": _QUEUE,
            f"yarn.scheduler.capacity.root.{_QUEUE}.capacity": "100",
            "yarn.scheduler.capacity.maximum-am-resource-percent": "0.9",
            # Otherwise the scheduler ignores cores.
            "yarn.scheduler.capacity.resource-calculator": (
                "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator"
            ),
        }
        configuration = folder / "configuration"
        _write(configuration, "core-site", {"fs.defaultFS": root})
        _write(configuration, "yarn-site", settings)
        _write(configuration, "capacity-scheduler", queues)
        started: list[subprocess.Popen[bytes]] = []

        def start(name: str, main: str, conf: Path) -> int:
            class_path = [conf, *paths, Path(pyspark.__file__).parent / "jars/*"]
            command = [str(java / "bin/java"), "-Xmx256m", *servers.QUICK_JAVA, *_OPENS]
            command += ["-Dorg.apache.logging.log4j.level=INFO", "-cp", ":".join(map(str, class_path))]
            with (folder / f"{name}.log").open("wb") as log:
                # HADOOP_CONF_DIR is missing, because node managers pass this variable to their containers,
                # and those of a real node need not have the same folder.
                process = subprocess.Popen(
                    [*command, f"{_SERVERS}.{main}"],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=folder,
                    env={"PATH": "/usr/bin:/bin", "JAVA_HOME": str(java)}, start_new_session=True,
                    preexec_fn=die_with_parent,
                )  # fmt: skip
            started.append(process)
            return process.pid

        try:
            start("resource-manager", "resourcemanager.ResourceManager", configuration)
            node_managers = []
            for index in range(NODES):
                conf = folder / f"node-{index}/configuration"
                _write(conf, "core-site", {"fs.defaultFS": root, "hadoop.tmp.dir": str(conf.parent / "tmp")})
                _write(conf, "yarn-site", settings | _of_node(conf.parent))
                node_managers.append(start(f"node-manager-{index}", "nodemanager.NodeManager", conf))
            yarn = Yarn(folder, configuration, root, tuple(node_managers))
            wait_for("the nodes of YARN", lambda: _running_nodes(ports[".webapp"]) == NODES, 180, poll_s=0.2)
            yield yarn
        finally:
            for process in started:
                kill_tree(process)


def _of_node(folder: Path) -> dict[str, str]:
    ports = (f"yarn.nodemanager.{name}" for name in ("address", "localizer.address", "webapp.address"))
    return {
        **{key: f"127.0.0.1:{free_port()}" for key in ports},
        "yarn.nodemanager.hostname": "127.0.0.1",
        "yarn.nodemanager.local-dirs": str(folder / "local"),
        "yarn.nodemanager.log-dirs": str(folder / "logs"),
        "yarn.nodemanager.resource.memory-mb": str(NODE_MEMORY_MB),
        "yarn.nodemanager.resource.cpu-vcores": str(NODE_CORES),
        # The default, 90, is about the disk of this machine.
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
        # HOME of the containers. The default, /home/, is as useless to a user, but root could write to it.
        "yarn.nodemanager.user-home-dir": "/proc/no-home",
    }


def _write(folder: Path, name: str, settings: Mapping[str, str]) -> None:
    """Writes a file of Hadoop's configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    properties = (
        f"<property><name>{escape(key)}</name><value>{escape(value)}</value></property>\n"
        for key, value in settings.items()
    )
    (folder / f"{name}.xml").write_text(f"<configuration>\n{''.join(properties)}</configuration>\n")


def _running_nodes(port: int) -> int:
    with (
        suppress(OSError),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/ws/v1/cluster/metrics", timeout=10) as answer,
    ):
        # The shaded classes of hadoop-client-minicluster leave out the object `clusterMetrics` around it.
        return int(json.load(answer)["activeNodes"])
    return 0
