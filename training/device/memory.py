"""Freed memory is kept for the next step, instead of being handed back to the system and fetched again.

A step on a CPU allocates and frees the same tensors, of tens of megabytes each. glibc maps each anew and unmaps it again, so that
every step pays for every page's first touch: a quarter of a bf16 step of DLRM on a virtual machine. GPUs' memory is torch's own.
"""

from __future__ import annotations

import ctypes

# Of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """From here on this process allocates within its heap, which does not shrink; what it has allocated stays where it is.

    Call it when the model is there: tables that are freed later then go back to the system as before.

    Returns:
        Whether the C library can do so; others than glibc are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _NEVER)) and bool(mallopt(_MMAP_MAX, 0))
