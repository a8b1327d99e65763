"""Standard output of a job, which holds its summary and nothing else.

spark-submit joins standard error of the driver's Python to its standard output, and copies both to its own
standard output. Programs that read the summary would find logs, warnings and tracebacks there. Under
spark-submit the JVM therefore copies everything to standard error, and writes the summary to standard output
itself. This holds for all output of the process, of any library, to its last line.
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
            "this JVM does not let logs be sent to standard error, they are in standard output: %s", error
        )
        return _print


def _print(line: str) -> None:
    """Writes a line to standard output without a JVM."""
    print(line, flush=True)


def _separated(jvm: Any) -> Callable[[str], None]:
    """Turns standard output of the JVM to standard error; the function writes to the real standard output."""
    # The copying thread holds System.out, so System.setOut would not change its target. Replace the number in
    # its file descriptor instead; Spark opens java.io for reflection in every JVM that it starts.
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
        streams = [os.stat(f"/proc/{pid}/fd/{number}") for number in (_STDOUT, _STDERR)]
    except OSError:
        return True
    return os.path.samestat(*streams)
