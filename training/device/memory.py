"""Keeps freed memory in the process for the next step.

A step on a CPU allocates and frees the same tensors, of tens of megabytes each. By default glibc maps and
unmaps each of them, so every step pays for the first touch of every page. torch itself keeps the memory of
GPUs.
"""

from __future__ import annotations

import ctypes

# Of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """From now on, this process allocates from its heap, and the heap does not shrink.

    Call it after the model is loaded: tables that were mapped before go back to the system when they are
    freed.

    Returns:
        Whether the C library is glibc. With others this does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _NEVER)) and bool(mallopt(_MMAP_MAX, 0))
