"""Sets how this process frees memory, collects garbage and lets threads wait; reads the free memory.

A training step on a CPU, or a task that scans text, allocates and frees arrays of tens of megabytes. By
default, glibc requests the memory of each array from the system, and returns this memory when the array is
freed. So in every step, the system must set up each memory page again at its first use. GPUs need no such
setting, because torch keeps freed GPU memory.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
from pathlib import Path

# Constants from glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Makes this process allocate all memory from its heap, and keeps the heap from shrinking.

    Call this after the model is loaded. The memory of large tables that were allocated before the call is
    still returned to the system when they are freed.

    Returns:
        True if the C library is glibc. With other C libraries, this function does nothing and returns False.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _NEVER)) and bool(mallopt(_MMAP_MAX, 0))


def return_freed_memory(above_bytes: int) -> bool:
    """Returns freed memory to the system if this process occupies more than `above_bytes`.

    Call this after a phase whose memory the next phase does not need. Free pages within the heap are returned
    too (glibc's malloc_trim).

    Returns:
        True if memory was returned. False if the process is small, or if the C library is not glibc.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None or _resident_bytes() <= above_bytes:
        return False
    return bool(trim(0))


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


# The functions below set how often Python searches for garbage that reference counting cannot free: objects
# that refer to each other.
#
# By default, Python makes such a search after every 700 new objects. A job's imports create some hundred
# thousand objects, which exist until the job ends. Each search in the oldest generation visits all of them.

# The first value is the number of new objects after which Python searches for garbage. The other values are
# the numbers of searches in a generation after which Python also searches the next older generation.
_THRESHOLDS = (20_000, 20, 20)
_DEFAULT_THRESHOLDS = gc.get_threshold()  # Python's defaults, unless the process has already changed them


def collect_rarely() -> None:
    """Makes Python search for garbage less often. Call this before the imports of a process."""
    gc.set_threshold(*_THRESHOLDS)


def collect_often() -> None:
    """Restores the thresholds from before `collect_rarely`.

    A process with a Spark session needs the former thresholds. Each Python object that represents an object
    of the JVM refers to itself after its first call. So without searches, the JVM's memory fills with unused
    objects.
    """
    gc.set_threshold(*_DEFAULT_THRESHOLDS)


def ignore_imported() -> None:
    """Excludes the objects that exist now from later searches for garbage.

    Only the first call in a process has an effect. Call this after the imports of a process. Garbage among
    the excluded objects is never freed. Later calls have no effect, because they would also keep garbage that
    was created since the first call.
    """
    if gc.get_freeze_count() == 0:
        gc.freeze()


# The functions below read how much memory is available on this host or in its container.


def available_memory() -> int:
    """Returns the bytes of memory that new tensors can use on this host or in its container.

    Memory of the page cache counts as available, because the system frees it when needed.
    """
    lines = Path("/proc/meminfo").read_text().splitlines()
    sizes = {name: int(value.split()[0]) * 1024 for name, _, value in (line.partition(":") for line in lines)}
    return min(sizes["MemAvailable"], _left_in_container())


def _left_in_container() -> int:
    """Returns the bytes left below the control group's memory limit (v2); a large number without a limit."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # there is no such group, or its limit is `max`
        return 2**62
    return max(limit - used + int(counts["inactive_file"]), 0)


# The function below sets how the threads of torch wait for one another on CPUs.

# libgomp reads this variable. Its value is the number of checks that a waiting thread makes before it sleeps.
# The default of 300,000 checks takes about a millisecond.
_VARIABLE, _LOOKS = "GOMP_SPINCOUNT", "1000"


def limit_spinning() -> None:
    """Makes waiting threads of torch sleep after some microseconds, unless the environment sets this time.

    By default, a waiting thread keeps its core busy. If the loader, a second rank or a Spark task needs this
    core at the same time, every operation of torch is delayed.

    OpenMP reads the environment when torch is imported. So the packages that import torch call this function
    first, in their `__init__.py`.
    """
    os.environ.setdefault(_VARIABLE, _LOOKS)
