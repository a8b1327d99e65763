"""Standard output of a job, which holds its summary and nothing else.

spark-submit runs the driver's Python with standard error joined to standard output, and copies both to its own standard output. So
logs, warnings and tracebacks would stand among what programs read. Under spark-submit what is copied is therefore sent to
standard error instead, by the JVM that copies it, and the summary is written by the JVM directly. That holds for all that the
process writes, by whatever library, to its last line.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext

log = logging.getLogger("nightrank")

_STDOUT, _STDERR = 1, 2


def separate_output() -> Callable[[str], None]:
    """Sends all that this process writes to standard error, if it runs under spark-submit.

    Returns:
        What writes a line to standard output.
    """
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return _print
    SparkContext._ensure_initialized()
    try:
        return _separated(SparkContext._jvm)
    except Py4JError as error:
        log.warning(
            "this JVM does not let logs be sent to standard error, they are in standard output: %s", error
        )
        return _print


def _print(line: str) -> None:
    print(line, flush=True)


def _separated(jvm: Any) -> Callable[[str], None]:
    # The thread that copies has System.out, so that System.setOut would not change where it writes. What can be changed is the
    # number in its file descriptor; Spark opens java.io for reflection in every JVM that it starts.
    descriptor = jvm.java.io.FileDescriptor
    number = jvm.java.lang.Class.forName("java.io.FileDescriptor").getDeclaredField("fd")
    number.setAccessible(True)
    real = descriptor()
    number.setInt(real, _STDOUT)
    stream = jvm.java.io.FileOutputStream(real)
    number.setInt(descriptor.out, _STDERR)
    joined = _are_one_file(jvm.java.lang.ProcessHandle.current().pid())

    def write(line: str) -> None:
        # Where both streams are one file, the copying thread may have written a part of a log line.
        stream.write(bytearray(f"\n{line}\n" if joined else f"{line}\n", "utf-8"))

    return write


def _are_one_file(pid: int) -> bool:
    """Whether standard output and standard error of a process are the same; true if that cannot be seen."""
    try:
        found = [os.stat(f"/proc/{pid}/fd/{number}") for number in (_STDOUT, _STDERR)]
    except OSError:
        return True
    return os.path.samestat(*found)
