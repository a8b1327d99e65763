"""The kernels as they are compiled for GPUs: how many registers, how much stack and shared memory they need."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from setup.console import cache_folder
from tests.training.test_kernels import ROOT, plain_environment

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

# What a multiprocessor has, the least of the three generations (CUDA C++ Programming Guide, table "Technical
# Specifications per Compute Capability"): registers, bytes of shared memory, programs at the same time.
REGISTERS, SHARED, PROGRAMS = 65_536, 164 * 1024, 32

DAYS_KEPT = 30

LEAST_THREADS = {
    "_gather": 512,
    "_forward": 256,
    "_backward": 256,
    "_add_up": 1024,
    "_finish": 512,
    "_move": 512,
    "_write_rows": 1024,
}


def cache_of_triton() -> Path:
    """A folder that later runs of the tests find again, without what is older than a month."""
    folder = cache_folder() / "compiled_kernels"
    oldest = time.time() - DAYS_KEPT * 24 * 3600
    for entry in folder.glob("*"):
        if entry.stat().st_mtime < oldest:
            shutil.rmtree(entry, ignore_errors=True)
    return folder


@pytest.fixture(scope="module")
def compiled() -> list[dict[str, Any]]:
    """What compile_kernels.py prints. The interpreter accepts more than the compiler does.

    Triton keeps its results by a digest of source code, settings and its own version, so only kernels that
    changed are compiled again.
    """
    environment = plain_environment(TRITON_CACHE_DIR=str(cache_of_triton()))
    script = ROOT / "tests/training/compile_kernels.py"
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_kernel_compiles_for_three_generations_of_gpus(compiled: list[dict[str, Any]]) -> None:
    source = "".join(path.read_text() for path in Path(ROOT / "training/kernels").glob("*.py"))
    for capability in (80, 90, 100):
        names = {facts["kernel"] for facts in compiled if facts["capability"] == capability}
        assert names == {"_gather", "_forward", "_backward", "_add_up", "_finish", "_move", "_write_rows"}
    for name in names:
        assert f"def {name}(" in source


def test_no_kernel_stores_registers_in_memory(compiled: list[dict[str, Any]]) -> None:
    assert [facts for facts in compiled if facts["stack"]] == []


def test_a_multiprocessor_runs_enough_threads_at_the_same_time(compiled: list[dict[str, Any]]) -> None:
    """Of up to 2,048: while some threads wait for memory, others compute."""
    for facts in compiled:
        by_registers = REGISTERS // (facts["registers"] * facts["threads"])
        by_shared = SHARED // max(facts["shared"], 1)
        threads = min(by_registers, by_shared, PROGRAMS) * facts["threads"]
        assert threads >= LEAST_THREADS[facts["kernel"]], facts
