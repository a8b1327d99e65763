"""Keeps standard output of a job free of everything except its summary.

spark-submit merges standard error of the driver's Python into its standard output, and copies both to its own
standard output. So programs that read the summary would also get logs, warnings and tracebacks. Therefore,
under spark-submit, this module makes the JVM copy everything to standard error and write the summary to
standard output itself. All output of the process is treated so, including that of libraries.
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
    """Sends all output of this process to standard error, if it runs under spark-submit.

    Returns:
        A function that writes a line to standard output.
    """
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return _print
    SparkContext._ensure_initialized()
    try:
        return _separated(SparkContext._jvm)
    except Py4JError as error:
        log.warning(
            "this JVM does not let logs be sent to standard error, so standard output also has logs: %s",
            error,
        )
        return _print


def _print(line: str) -> None:
    """Writes a line to standard output without a JVM."""
    print(line, flush=True)


def _separated(jvm: Any) -> Callable[[str], None]:
    """Redirects the JVM's standard output to standard error.

    Returns a function that writes a line to the real standard output.
    """
    # The copying thread keeps a reference to System.out, so System.setOut would have no effect on it. Replace
    # the number in its file descriptor instead. Spark opens java.io for reflection in every JVM that it
    # starts.
    descriptor = jvm.java.io.FileDescriptor
    number = jvm.java.lang.Class.forName("java.io.FileDescriptor").getDeclaredField("fd")
    number.setAccessible(True)
    real = descriptor()
    number.setInt(real, _STDOUT)
    stream = jvm.java.io.FileOutputStream(real)
    number.setInt(descriptor.out, _STDERR)
    joined = _are_one_file(jvm.java.lang.ProcessHandle.current().pid())

    def write(line: str) -> None:
        # If both streams are the same file, the copying thread may have written part of a log line.
        stream.write(bytearray(f"\n{line}\n" if joined else f"{line}\n", "utf-8"))

    return write


def _are_one_file(pid: int) -> bool:
    """Returns whether standard output and error of a process are the same file; True if this is unknown."""
    try:
        streams = [os.stat(f"/proc/{pid}/fd/{number}") for number in (_STDOUT, _STDERR)]
    except OSError:
        return True
    return os.path.samestat(*streams)
