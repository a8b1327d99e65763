"""The server process that forks the workers of spark.workers (forkserver of multiprocessing).

This module imports nothing that takes time, so that a job can start the server before its own imports.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from types import ModuleType

_LONGEST_FOLDER = 70  # maximum bytes of the path of the folder in which the server's socket is created


def start_server() -> None:
    """Starts the server if it does not run yet. The server imports modules while the caller continues."""
    multiprocessing.set_forkserver_preload(["spark.forked_modules"])
    with _short_folder():
        forkserver.ensure_running()


def start_server_early() -> None:
    """Starts the server.

    Does nothing if spark-submit started this process, because such a process uses Spark's workers.
    """
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        start_server()


@contextmanager
def _short_folder() -> Iterator[None]:
    """Lets multiprocessing create its socket in /tmp if the folder of temporary files has a long path.

    The path of a Unix socket has at most 107 bytes. It consists of the folder's path and two names that
    multiprocessing adds.
    """
    if len(os.fsencode(tempfile.gettempdir())) <= _LONGEST_FOLDER:
        yield
        return
    before, tempfile.tempdir = tempfile.tempdir, "/tmp"
    try:
        yield
    finally:
        tempfile.tempdir = before


@contextmanager
def without_main_module() -> Iterator[None]:
    """Hides the main module while processes are started.

    Otherwise multiprocessing would run the file of the main module in each new process, and so import all
    modules of the job. But workers run only functions of other modules.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
