"""Checks what a profile needs of YARN: the configuration, the resource manager, containers, files in HDFS."""

from __future__ import annotations

import socket
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from conf.errors import NightrankError
from setup.doctor.findings import Finding
from setup.doctor.profile import Profile, size_of
from storage import file_io

_FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_PAGE = "docs/clusters.md#yarn"
_ARCHIVES = ("spark.yarn.dist.archives", "spark.yarn.dist.files", "spark.yarn.archive")
_MIB = 2**20
_PORT = 8032  # the port of the resource manager for clients
_PATIENCE_S = 5.0
# Names of limits, and their defaults in yarn-default.xml of Hadoop 3.
_MOST_MEMORY, _DEFAULT_MEMORY_MB = "yarn.scheduler.maximum-allocation-mb", 8192
_MOST_CORES, _DEFAULT_CORES = "yarn.scheduler.maximum-allocation-vcores", 4
_VIRTUAL_MEMORY = "yarn.nodemanager.vmem-check-enabled"
# Spark's defaults for the container of the application in client mode.
_MASTER_MEMORY, _MASTER_OVERHEAD = "512m", 384 * _MIB


def yarn(profile: Profile, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Checks the cluster of a profile whose master is `yarn`."""
    if (profile.get("spark.master") or "") != "yarn":
        return
    folder = next((environment[name] for name in _FOLDERS if environment.get(name)), None)
    if folder is None:
        yield Finding(
            "YARN",
            "HADOOP_CONF_DIR is not set, so spark-submit does not find the cluster",
            f"set it to the folder with core-site.xml and yarn-site.xml of the cluster ({_PAGE})",
        )
        return
    path = Path(folder, "yarn-site.xml")
    try:
        settings = _settings_in(path)
    except (OSError, ElementTree.ParseError) as error:
        remedy = f"copy the file from a node of the cluster, or correct HADOOP_CONF_DIR ({_PAGE})"
        yield Finding("YARN", f"{path} cannot be read: {error}", remedy)
        return
    yield from _resource_manager(settings, path)
    yield from _containers(profile, settings, path)
    yield from _files(profile)


def _settings_in(path: Path) -> dict[str, str]:
    """Returns the settings of a file of Hadoop's configuration."""
    return {
        entry.findtext("name", "").strip(): entry.findtext("value", "").strip()
        for entry in ElementTree.parse(path).getroot().iter("property")
    }


def _resource_manager(settings: Mapping[str, str], path: Path) -> Iterator[Finding]:
    """Checks that a resource manager answers. A cluster may have several, each with its own address."""
    ids = [name.strip() for name in settings.get("yarn.resourcemanager.ha.rm-ids", "").split(",") if name]
    problems = []
    for suffix in [f".{name}" for name in ids] or [""]:
        host = settings.get(f"yarn.resourcemanager.hostname{suffix}", "0.0.0.0")
        address = settings.get(f"yarn.resourcemanager.address{suffix}", f"{host}:{_PORT}")
        address = address.replace("${yarn.resourcemanager.hostname}", host)
        name, _, port = address.rpartition(":")
        if name == "0.0.0.0":
            problems.append(f"{path} has no address of it")
            continue
        try:
            with closing(socket.create_connection((name, int(port)), timeout=_PATIENCE_S)):
                yield Finding("YARN", f"the resource manager answers at {address}")
                return
        except (OSError, ValueError) as error:
            problems.append(f"{address}: {error}")
    yield Finding(
        "YARN",
        f"no resource manager answers ({'; '.join(problems)})",
        f"set yarn.resourcemanager.address in {path} to its address, or open the port in the firewall",
    )


def _containers(profile: Profile, settings: Mapping[str, str], path: Path) -> Iterator[Finding]:
    """Checks that the largest container that YARN allows is large enough for an executor."""
    memory = int(settings.get(_MOST_MEMORY, _DEFAULT_MEMORY_MB))
    cores = int(settings.get(_MOST_CORES, _DEFAULT_CORES))
    master = size_of("spark.yarn.am.memory", profile.get("spark.yarn.am.memory") or _MASTER_MEMORY)
    for what, needed in (("an executor", profile.executor_bytes), ("the master", master + _MASTER_OVERHEAD)):
        text = f"{what} needs a container of {needed // _MIB:,} MiB; the largest has {memory:,}"
        remedy = f"lower spark.executor.memory and spark.executor.memoryOverhead, or raise {_MOST_MEMORY}"
        if needed > memory * _MIB:
            yield _limited("containers", text, remedy, _MOST_MEMORY, settings, path)
        else:
            yield Finding("containers", text)
    wanted = int(profile.get("spark.executor.cores") or 1)
    if wanted > cores:
        text = f"an executor needs {wanted} cores; the largest container has {cores}"
        remedy = f"lower spark.executor.cores, or raise {_MOST_CORES}"
        yield _limited("containers", text, remedy, _MOST_CORES, settings, path)
    if settings.get(_VIRTUAL_MEMORY, "true") == "true":
        yield Finding(
            "containers",
            f"unless {_VIRTUAL_MEMORY} is false on the node managers, YARN may kill a container because of "
            "addresses that its processes have reserved but do not use",
            f"set {_VIRTUAL_MEMORY} to false in yarn-site.xml of the node managers and of this machine",
            is_warning=True,
        )


def _limited(
    subject: str, text: str, remedy: str, key: str, settings: Mapping[str, str], path: Path
) -> Finding:
    """Returns a finding about a limit; only a warning if the file `path` does not set the limit."""
    if key in settings:
        return Finding(subject, text, remedy)
    return Finding(subject, f"{text}, the default, because {path} has no {key}", remedy, is_warning=True)


def _files(profile: Profile) -> Iterator[Finding]:
    """Checks that the files in HDFS that YARN copies to the nodes exist."""
    for key in _ARCHIVES:
        for entry in (profile.get(key) or "").split(","):
            uri = entry.strip().partition("#")[0]
            if not uri.startswith("hdfs:"):
                continue
            try:
                there, problem = file_io.exists(uri), "it does not exist"
            except (NightrankError, OSError) as error:
                there, problem = False, str(error)
            if there:
                yield Finding("archive", f"{uri} ({key}) exists")
            else:
                remedy = f"copy the file there (`hdfs dfs -put`), or correct {key} ({_PAGE})"
                yield Finding("archive", f"{uri} ({key}): {problem}", remedy)
