"""Checks cores, memory, disk, open files, addresses, ports and the time zone of the machine."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from setup.doctor.findings import Finding
from setup.doctor.profile import Profile

_LEAST_FREE_BYTES = 20 * 2**30
_LEAST_OPEN_FILES = 4096
_PORTS = ("spark.driver.port", "spark.driver.blockManager.port", "spark.blockManager.port")
_LIMIT_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_TIME_ZONE = re.compile(r"-Duser\.timezone=(\S+)")


def cores(profile: Profile) -> Iterator[Finding]:
    """Checks that an executor, or a local master, does not need more cores than the machine has."""
    here = len(os.sched_getaffinity(0))
    key = "spark.executor.cores"
    wanted = profile.get(key)
    if profile.local_threads is not None:
        key, wanted = "spark.master", profile.local_threads
    if wanted is None or wanted == "*":
        yield Finding("cores", f"{here}")
    elif int(wanted) > here:
        yield Finding("cores", f"{here}, but {key} is {wanted}", f"lower {key}, or use a larger node")
    else:
        yield Finding("cores", f"{here}; {key} is {wanted}")
    per_task = int(profile.get("spark.task.cpus") or 1)
    if key == "spark.executor.cores" and wanted is not None and per_task > int(wanted):
        yield Finding(
            "cores", f"spark.task.cpus={per_task} is more than {key}={wanted}, so no task could run",
            "lower spark.task.cpus",
        )  # fmt: skip


def memory(profile: Profile) -> Iterator[Finding]:
    """Checks that one executor, or the driver of a local master, fits into the memory."""
    here = memory_bytes()
    local = profile.local_threads is not None
    wanted = profile.driver_bytes if local else profile.executor_bytes
    what = "the driver" if local else "an executor"
    text = f"{_gib(here)}; {what} needs {_gib(wanted)}"
    if wanted > here:
        key = "spark.driver.memory" if local else "spark.executor.memory and spark.executor.memoryOverhead"
        yield Finding("memory", text, f"lower {key}, or use a larger node")
    else:
        yield Finding("memory", text)


def memory_bytes() -> int:
    """Returns the memory of this machine, or the limit of its container if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in map(Path, _LIMIT_FILES):
        if path.is_file() and (text := path.read_text().strip()).isdigit():
            total = min(total, int(text))
    return total


def disks(profile: Profile, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Checks that Spark's folders for temporary files can be written and have room."""
    named = environment.get("SPARK_LOCAL_DIRS") or profile.get("spark.local.dir") or tempfile.gettempdir()
    for folder in map(Path, named.split(",")):
        parent = next(path for path in (folder, *folder.parents) if path.exists())
        try:
            with tempfile.TemporaryFile(dir=parent):
                pass
        except OSError as error:
            yield Finding(
                "disk", f"{folder} cannot be written: {error}", "correct spark.local.dir, or its owner"
            )
            continue
        free = shutil.disk_usage(parent).free
        text = f"{folder} has {_gib(free)} free"
        if free < _LEAST_FREE_BYTES:
            yield Finding(
                "disk", text, f"free {_gib(_LEAST_FREE_BYTES)}, or set spark.local.dir to a larger disk"
            )
        else:
            yield Finding("disk", text)


def open_files() -> Iterator[Finding]:
    """Checks how many files a process may open: shuffles open one for each partition."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"a process may open {soft:,}"
    if soft == resource.RLIM_INFINITY or soft >= _LEAST_OPEN_FILES:
        yield Finding("open files", text)
    elif hard == resource.RLIM_INFINITY or hard >= _LEAST_OPEN_FILES:
        most = 2**16 if hard == resource.RLIM_INFINITY else min(hard, 2**16)
        yield Finding("open files", text, f"ulimit -n {most}")
    else:
        yield Finding(
            "open files",
            f"{text}, and may not raise this above {hard:,}",
            f"raise the hard limit to {_LEAST_OPEN_FILES:,} or more: nofile in /etc/security/limits.conf, or "
            f"--ulimit nofile={2**16} of a container",
        )


def addresses(profile: Profile) -> Iterator[Finding]:
    """Checks that executors on other nodes can reach the driver by the name of this machine."""
    named = profile.get("spark.driver.host") or os.environ.get("SPARK_LOCAL_IP") or socket.gethostname()
    try:
        address = socket.gethostbyname(named)
    except OSError as error:
        yield Finding(
            "host name", f"{named} has no address: {error}", "add it to /etc/hosts, or to the name server"
        )
        return
    if profile.local_threads is None and address.startswith("127."):
        yield Finding(
            "host name",
            f"{named} is {address}, which other nodes cannot reach",
            "set spark.driver.host to an address of this machine, or correct /etc/hosts",
        )
    else:
        yield Finding("host name", f"{named} is {address}")


def ports(profile: Profile) -> Iterator[Finding]:
    """Checks that the driver can listen on its address, and that the ports in the profile are free."""
    address = profile.get("spark.driver.bindAddress") or profile.get("spark.driver.host") or ""
    fixed = {key: int(profile.get(key) or 0) for key in _PORTS if int(profile.get(key) or 0) > 0}
    for key, port in (fixed or {"spark.driver.bindAddress": 0}).items():
        text = f"{address or 'every address'}{f', port {port}' if port else ''} ({key})"
        try:
            with closing(socket.create_server((address, port))):
                yield Finding("ports", f"the driver can listen on {text}")
        except OSError as error:
            yield Finding("ports", f"the driver cannot listen on {text}: {error.strerror}", f"correct {key}")


def time_zone(profile: Profile) -> Iterator[Finding]:
    """Checks that driver and executors of the accelerator have the same time zone, which it requires."""
    if not profile.accelerated:
        return
    zones = {}
    for key in ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"):
        match = _TIME_ZONE.search(profile.get(key) or "")
        zones[key] = match[1] if match else None
    if set(zones.values()) == {"UTC"}:
        yield Finding("time zone", "UTC in driver and executors")
    for key, zone in zones.items():
        if zone != "UTC":
            what = "no time zone" if zone is None else f"the time zone {zone}"
            yield Finding("time zone", f"{key} has {what}", f"add -Duser.timezone=UTC to {key}")


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
