"""Returns how much memory this host, or its container, has left."""

from __future__ import annotations

from pathlib import Path


def available_memory() -> int:
    """Returns the memory of this host, or of its container, that new tensors can use, in bytes.

    Memory of the page cache counts as available, because the system frees it when it is needed.
    """
    lines = Path("/proc/meminfo").read_text().splitlines()
    sizes = {name: int(value.split()[0]) * 1024 for name, _, value in (line.partition(":") for line in lines)}
    return min(sizes["MemAvailable"], _left_in_container())


def _left_in_container() -> int:
    """Returns what the memory limit of the control group (version 2) leaves; a large number without one."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # there is no such group, or its limit is `max`
        return 2**62
    return max(limit - used + int(counts["inactive_file"]), 0)
