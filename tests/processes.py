"""Processes of tests: waited for, looked at and ended."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import TypeVar

import psutil

ROOT = Path(__file__).parents[1]
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h

Found = TypeVar("Found")


def wait_for(
    what: str, look: Callable[[], Found | None], seconds: float = 300, poll_s: float = 0.02
) -> Found:
    """What `look` finds, asked so often; AssertionError when it has found nothing for so many seconds."""
    deadline = time.monotonic() + seconds
    while not (result := look()):
        assert time.monotonic() < deadline, f"{what}: not seen in {seconds:.0f} s"
        time.sleep(poll_s)
    return result


def wait_until_gone(processes: list[int]) -> None:
    """AssertionError when one of these process ids is still there after a minute."""
    wait_for("the end of all processes", lambda: not any(map(_lives, processes)), 60, poll_s=0.2)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def fork_server(*modules: str) -> Iterator[BaseContext]:
    """A server of multiprocessing that has imported these modules, and forks processes within 100 ms.

    Python has one server, which keeps the modules of its start. So a server that runs is stopped before, and
    this one at the end. A server ends after its processes, so those that a failed test has left are killed.
    """
    _kill_children()
    forkserver._forkserver._stop()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    try:
        yield context
    finally:
        _kill_children()
        forkserver._forkserver._stop()


def _kill_children() -> None:
    for process in multiprocessing.active_children():
        process.kill()


def server_address() -> str:
    """The address of the server, for `fork_from`. Starts the server if it does not run yet."""
    forkserver.ensure_running()
    address: str = forkserver._forkserver._forkserver_address
    return address


def fork_from(address: str) -> None:
    """Lets this process, which a server forked, fork further processes from this server.

    Otherwise it would start a second server, which imports all modules again.
    """
    forkserver._forkserver._forkserver_address = address
    for owner in (forkserver, forkserver._forkserver):
        setattr(owner, "ensure_running", lambda: None)  # noqa: B010  mypy refuses the plain assignment


def environment() -> dict[str, str]:
    """This process's environment, with our packages on the path and Spark on loopback."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}


def die_with_parent() -> None:
    """For preexec_fn: the kernel ends this process when its parent has ended, even if that was killed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a process, all that it started, and its process group."""
    with suppress(psutil.NoSuchProcess):
        below = psutil.Process(process.pid).children(recursive=True)
        for child in below:
            with suppress(psutil.NoSuchProcess):
                child.kill()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
