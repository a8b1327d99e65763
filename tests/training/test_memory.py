"""Freed memory is kept: a second allocation touches no new pages."""

from __future__ import annotations

import subprocess
import sys

import pytest

_FAULTS = """
import resource, sys
import numpy as np
from conf.process import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()

def allocate():
    many = [np.ones(8_000_000) for _ in range(3)]  # 64 MB each, every page written

allocate()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    allocate()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
def test_what_is_freed_is_used_again() -> None:
    def faults(how: str) -> int:
        ended = subprocess.run(
            [sys.executable, "-c", _FAULTS, how], capture_output=True, text=True, check=True
        )
        return int(ended.stdout)

    kept, handed_back = faults("keep"), faults("leave")
    assert kept < handed_back / 10
