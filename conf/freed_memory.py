"""Keeps freed memory in the process for the next step or task.

A training step on a CPU, or a task that scans text, allocates and frees arrays of tens of megabytes. By
default, glibc requests the memory of each array from the system and returns it afterwards. So in every step,
each memory page must be set up again at its first use. GPUs need no such setting, because torch keeps freed
GPU memory.
"""

from __future__ import annotations

import ctypes
import resource
from pathlib import Path

# Constants from glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Makes this process allocate all memory from its heap, and keeps the heap from shrinking.

    Call this after the model is loaded: large tables that were allocated before the call are returned to the
    system when they are freed.

    Returns:
        True if the C library is glibc. With other C libraries, this function does nothing and returns False.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _NEVER)) and bool(mallopt(_MMAP_MAX, 0))


def return_freed_memory(above_bytes: int) -> bool:
    """Returns freed memory to the system if this process occupies more than `above_bytes`.

    Call this between two kinds of work. Free pages within the heap are returned, too (glibc's malloc_trim).

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
