from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.harness import Measured, measure, settle

pytestmark = pytest.mark.processes

MIB = 2**20
BURN = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass\n"


def run(tmp_path: Path, script: str, limit_s: float = 60.0, cores: int = 1) -> Measured:
    return measure([sys.executable, "-c", script], log=tmp_path / "log", cores=cores, limit_s=limit_s)


# Bounds are wide: an interpreter on a machine that does much else takes half a second of CPU to start.
def alive(pid: int) -> bool:
    return (
        Path(f"/proc/{pid}").exists()
        and "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1][:3]
    )


def test_cpu_is_that_of_the_work_and_not_of_waiting(tmp_path: Path) -> None:
    used = run(tmp_path, BURN.format(0.5) + "time.sleep(1)")
    assert used.returncode == 0
    assert not used.timed_out
    assert 0.5 <= used.cpu_s < 1.4
    assert used.wall_s > 1.5


def test_cpu_of_children_counts_whether_they_are_waited_for_or_left_behind(tmp_path: Path) -> None:
    child = f"subprocess.Popen([sys.executable, '-c', {BURN.format(0.5)!r}])"
    waited = run(tmp_path, f"import subprocess, sys\n{child}.wait()")
    running = run(tmp_path, f"import subprocess, sys, time\n{child}\ntime.sleep(5)")
    assert 0.5 <= waited.cpu_s < 1.4
    assert 0.5 <= running.cpu_s < 1.4


def test_a_process_whose_parent_ended_still_counts_and_is_ended(tmp_path: Path) -> None:
    grandchild = f"import time\n{BURN.format(0.3)}\ntime.sleep(60)"
    child = (
        "import subprocess, sys\n"
        f"print(subprocess.Popen([sys.executable, '-c', {grandchild!r}]).pid, flush=True)"
    )
    script = f"import subprocess, sys, time\nsubprocess.run([sys.executable, '-c', {child!r}])\ntime.sleep(1)"
    used = run(tmp_path, script)
    assert used.cpu_s >= 0.3
    assert used.wall_s < 20
    assert not alive(int((tmp_path / "log").read_text()))


def test_cpu_of_an_orphan_that_ends_by_itself_counts(tmp_path: Path) -> None:
    """A child starts a grandchild and ends, so the grandchild becomes a child of the harness."""
    grandchild = f"subprocess.Popen([sys.executable, '-c', {BURN.format(0.5)!r}])"
    child = f"import subprocess, sys\n{grandchild}"
    script = f"import subprocess, sys, time\nsubprocess.run([sys.executable, '-c', {child!r}])\ntime.sleep(6)"
    used = run(tmp_path, script)
    assert 0.5 <= used.cpu_s < 1.9
    assert used.returncode == 0


def test_cpu_between_two_instants(tmp_path: Path) -> None:
    burn = BURN.format(0.5)
    script = f"import time\n{burn}print(time.monotonic())\ntime.sleep(1)\nprint(time.monotonic())\n{burn}"
    used = run(tmp_path, script)
    slept, woke = (float(line) for line in (tmp_path / "log").read_text().split())
    assert used.cpu_between(used.samples[0][0], slept) == pytest.approx(0.7, abs=0.5)
    assert used.cpu_between(slept, woke) == pytest.approx(0.0, abs=0.4)
    assert used.cpu_between(used.samples[0][0], used.samples[-1][0]) == pytest.approx(used.cpu_s)


def test_peak_memory_is_seen_after_it_was_given_back(tmp_path: Path) -> None:
    used = run(tmp_path, "import time\nb = b'x' * (200 << 20)\ntime.sleep(1.5)\ndel b\ntime.sleep(0.3)")
    assert 200 * MIB < used.peak_rss_bytes < 300 * MIB
    assert 200 * MIB < used.peak_pss_bytes < 300 * MIB


def test_pages_that_forked_workers_share_count_once_in_pss(tmp_path: Path) -> None:
    script = (
        "import os, time\n"
        "b = b'x' * (200 << 20)\n"
        "for _ in range(3): os.fork() or (time.sleep(2), os._exit(0))\n"
        "time.sleep(2)"
    )
    used = run(tmp_path, script)
    assert used.peak_rss_bytes > 600 * MIB
    assert used.peak_pss_bytes < 350 * MIB


def test_a_run_that_passes_its_limit_is_killed_with_its_children(tmp_path: Path) -> None:
    script = (
        "import subprocess, time\nprint(subprocess.Popen(['sleep', '60']).pid, flush=True)\ntime.sleep(60)"
    )
    began = time.monotonic()
    used = run(tmp_path, script, limit_s=0.8)
    assert used.timed_out
    assert time.monotonic() - began < 20
    assert not alive(int((tmp_path / "log").read_text()))


def test_a_run_is_killed_before_the_machine_has_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is above the memory of this machine, so that the test needs no memory."""
    monkeypatch.setattr(harness, "_LEAST_AVAILABLE_BYTES", 2**60)
    measured = measure(["sleep", "60"], log=tmp_path / "log", cores=1, limit_s=60)
    assert measured.out_of_memory
    assert not measured.timed_out
    assert measured.returncode == -signal.SIGKILL
    assert measured.wall_s < 30


def test_failure_and_output_are_kept(tmp_path: Path) -> None:
    used = run(tmp_path, "import sys\nprint('said')\nsys.exit(3)")
    assert used.returncode == 3
    assert (tmp_path / "log").read_text() == "said\n"


@pytest.mark.parametrize("cores", [1, 2])
def test_it_is_pinned_to_its_cores(tmp_path: Path, cores: int) -> None:
    cores = min(cores, len(os.sched_getaffinity(0)))
    run(tmp_path, "import os\nprint(len(os.sched_getaffinity(0)))", cores=cores)
    assert int((tmp_path / "log").read_text()) == cores


@pytest.fixture
def neighbour() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield process
    process.kill()
    process.wait()


def test_children_we_had_before_do_not_count_and_live_on(
    tmp_path: Path, neighbour: subprocess.Popen[bytes]
) -> None:
    used = run(tmp_path, "import time\ntime.sleep(2)", cores=2)
    assert used.cpu_s < 1
    assert neighbour.poll() is None


def test_settle_reads_every_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 10)
    settle([str(tmp_path / "a")])
    with pytest.raises(FileNotFoundError):
        settle([str(tmp_path / "b")])
