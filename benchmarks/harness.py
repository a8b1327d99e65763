"""Runs a contender in a process of its own, and measures the resources of its process tree.

The resources are seconds, CPU seconds and peak memory.

* *CPU seconds* are the user and system time in /proc of every running process of the tree. This time includes
  that of ended child processes for which the process has waited. The harness makes itself the subreaper of the tree
  (prctl). If the parent of a process ends first, such as the launcher of a JVM, the process becomes a child
  of the harness, and the kernel counts its time in the harness's RUSAGE_CHILDREN. So no time is lost or
  counted twice.
* *Memory* is sampled ten times per second as the sum of the resident set sizes (RSS) of all processes. If
  forked workers share a page, this sum counts the page once per worker. The sum of the proportional set sizes
  (PSS) counts such a page once. Reading PSS is slow, because the kernel walks the page tables. The harness
  reads PSS whenever RSS has grown by a tenth, and otherwise so rarely that this takes at most two per cent of
  the time.
* *Parts of the work*: contenders report the times at which their parts start and end (benchmarks.contender).
  CPU seconds at these times are interpolated between samples.

Every contender is pinned to the same number of cores and reads its input from the file cache. Before a
contender starts, `settle` waits until the data that the previous contender wrote are on disk.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent

SAMPLE_S = 0.1
_END_SAMPLE_S = 0.005
_PSS_SHARE, _GROWN = 0.02, 1.1
_PR_SET_CHILD_SUBREAPER = 36
_LEAST_AVAILABLE_BYTES = 2**29
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Measured:
    """The resources that one process tree used.

    Attributes:
        returncode: exit code of the process that was started. If a signal ended it, this is the negative
            number of the signal.
        timed_out: whether the process tree was killed at its time limit.
        out_of_memory: whether the process tree was killed because the machine had almost no memory left.
        wall_s: seconds from the start of the process to the end of the last process of its tree.
        cpu_s: CPU seconds of the process tree.
        peak_rss_bytes: highest sum of the resident set sizes of all processes. A page that is shared by n
            processes counts n times.
        peak_pss_bytes: highest sum of the proportional set sizes of all processes. This sum is sampled less
            often.
        samples: pairs of a time (CLOCK_MONOTONIC) and the CPU seconds of the tree until that time, oldest
            first.
    """

    returncode: int
    timed_out: bool
    wall_s: float
    cpu_s: float
    peak_rss_bytes: int
    peak_pss_bytes: int
    samples: tuple[tuple[float, float], ...]
    out_of_memory: bool = False

    def cpu_between(self, start: float, end: float) -> float:
        """Returns the CPU seconds of the process tree between two times, interpolated between samples."""
        return self._cpu_at(end) - self._cpu_at(start)

    def _cpu_at(self, instant: float) -> float:
        times = [sampled_at for sampled_at, _ in self.samples]
        after = bisect_left(times, instant)
        if after == 0:
            return self.samples[0][1]
        if after == len(times):
            return self.samples[-1][1]
        (t0, c0), (t1, c1) = self.samples[after - 1], self.samples[after]
        return c0 + (c1 - c0) * (instant - t0) / (t1 - t0) if t1 > t0 else c1


def measure(
    command: Sequence[str],
    *,
    log: Path,
    cores: int,
    limit_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Measured:
    """Runs a command until it ends, or kills its process tree at the time limit.

    The tree is also killed if the machine has less than 512 MiB of memory left. Otherwise the system would
    spend minutes on reading programs from disk again before it kills a process.

    Args:
        command: the command and its arguments.
        log: file to which the command's standard output and error are written.
        cores: number of cores to which the command is pinned.
        limit_s: time limit in seconds.
        env: environment variables of the command; None means those of this process.
        cwd: working directory of the command; None means that of this process.
    """
    _become_subreaper()
    others = {process.pid for process in _tree(os.getpid(), set())}
    allowed = sorted(os.sched_getaffinity(0))[:cores]
    before = _reaped_cpu_s()
    start = time.monotonic()
    samples: list[tuple[float, float]] = [(start, 0.0)]
    peak_rss = peak_pss = rss_then = 0
    next_pss = start
    timed_out = out_of_memory = False
    with log.open("wb") as output:
        child = subprocess.Popen(
            list(command),
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, allowed),
        )
        while True:
            child.poll()
            now = time.monotonic()
            reaped = _reaped_cpu_s() - before
            tree = _tree(os.getpid(), others)
            if not tree:
                break
            samples.append((now, reaped + sum(process.cpu_s for process in tree)))
            _reap_orphans(
                tree, child.pid
            )  # after the sample, so that the next sample counts the reaped processes
            rss = sum(process.rss_bytes for process in tree)
            peak_rss = max(peak_rss, rss)
            if now >= next_pss or rss > _GROWN * rss_then:
                # CPU time: on a busy machine, the time of a clock would delay the next sample.
                used = time.thread_time()
                peak_pss = max(peak_pss, sum(_pss_bytes(process.pid) for process in tree))
                rss_then, used = rss, time.thread_time() - used
                next_pss = time.monotonic() + used / _PSS_SHARE
            if child.returncode is not None:  # also end processes that outlive the one we started
                _kill(tree, signal.SIGTERM)
            elif now - start > limit_s:
                timed_out = True
                _kill(tree, signal.SIGKILL)
            elif _available_bytes() < _LEAST_AVAILABLE_BYTES:
                out_of_memory = True
                _kill(tree, signal.SIGKILL)
            _wait_for_end(child, SAMPLE_S - (time.monotonic() - now))
        end = time.monotonic()
    cpu = _reaped_cpu_s() - before
    samples.append((end, cpu))
    return Measured(
        returncode=child.wait(),
        timed_out=timed_out,
        wall_s=end - start,
        cpu_s=cpu,
        peak_rss_bytes=peak_rss,
        peak_pss_bytes=peak_pss,
        samples=tuple(samples),
        out_of_memory=out_of_memory,
    )


def run_job(
    job: str,
    arguments: Sequence[str],
    folder: Path,
    *,
    cores: int,
    limit_s: float,
    variables: Mapping[str, str] | None = None,
) -> Measured:
    """Measures a job of this project in a process of its own. Its output is in `<job>.log` in `folder`.

    Args:
        job: the name of a file in `jobs`.
        arguments: the arguments of the job.
        folder: the folder of the log.
        cores, limit_s: see `measure`.
        variables: environment variables in addition to those of this process.

    Raises:
        SystemExit: the job failed.
    """
    log = folder / f"{job}.log"
    done = measure(
        [sys.executable, str(_ROOT / f"jobs/{job}.py"), *arguments],
        log=log,
        cores=cores,
        limit_s=limit_s,
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT), **(variables or {})},
    )
    if done.returncode:
        raise SystemExit(f"{job} ended with exit code {done.returncode}:\n{log.read_text()[-3000:]}")
    return done


def _wait_for_end(child: subprocess.Popen[bytes], seconds: float) -> None:
    """Waits until the started process ends, or until the next sample.

    After that end, samples are closer together, so that the end of the last process is not measured too late.
    """
    if child.returncode is None:
        ended = os.pidfd_open(child.pid)
        select.select([ended], [], [], max(0.0, seconds))
        os.close(ended)
    else:
        time.sleep(_END_SAMPLE_S)


def settle(files: Iterable[str]) -> None:
    """Waits until all written data are on disk, and reads the files once.

    After this, the files are in the file cache, so all contenders start under the same conditions.
    """
    os.sync()
    for file in files:
        with open(file, "rb", buffering=0) as source:
            while source.read(1 << 24):
                pass


def _available_bytes() -> int:
    """Returns how much memory processes can still get without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable")


def _become_subreaper() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def _reaped_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass(frozen=True)
class _Process:
    """A process in /proc. `cpu_s` includes ended child processes for which the process has waited."""

    pid: int
    parent: int
    cpu_s: float
    rss_bytes: int


def _tree(root: int, others: set[int]) -> list[_Process]:
    """Returns every process below `root`, except `others` and their descendants.

    An ended process is included until its parent has waited for it.
    """
    below: dict[int, list[_Process]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            process = _read_process(int(name))
            if process is not None and process.pid not in others:
                below.setdefault(process.parent, []).append(process)
    processes, waiting = [], [root]
    while waiting:
        children = below.get(waiting.pop(), [])
        processes += children
        waiting += [child.pid for child in children]
    return processes


def _read_process(pid: int) -> _Process | None:
    """Returns the process with this id, or None if it does not exist any more."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    ticks = sum(int(fields[place]) for place in (11, 12, 13, 14))  # utime, stime, cutime, cstime
    return _Process(pid, int(fields[1]), ticks / _TICK, int(fields[21]) * _PAGE_BYTES)


def _reap_orphans(tree: Iterable[_Process], started: int) -> None:
    """Calls waitpid for the ended processes of the tree whose parent is now this process.

    The process with the id `started` is left out, because Popen waits for it.
    """
    for process in tree:
        if process.parent == os.getpid() and process.pid != started:
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def _pss_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _kill(tree: Iterable[_Process], number: signal.Signals) -> None:
    for process in tree:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
