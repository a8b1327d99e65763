"""Saves the Java stack traces of a job to a file, instead of printing them. The job's error names the file.

Spark logs the stack trace of a failed task several times, in hundreds of lines. While a job runs, its JVM
prints only the first line of each message to standard error, and writes all lines to a temporary file. It
also prints all lines in which the RAPIDS Accelerator says that an operation stays on the CPU. If the user has
configured log4j2, the output on standard error follows the user's configuration.

If the temporary file contains stack traces when the job ends, it is moved to the folder of logs in the lake.
The traceback of the error that ended the job is added to this file. If the lake cannot be written, the file
remains in the folder of temporary files.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
import traceback
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    DateTimeException,
    NumberFormatException,
    PySparkException,
    PythonException,
    SparkUpgradeException,
)

from conf.errors import DataError, NightrankError
from storage import file_io

log = logging.getLogger("nightrank")

_SPARK_DEFAULTS = "log4j2-defaults.properties"
_NAME = "nightrank"
_HEAD = "%d{yy/MM/dd HH:mm:ss} %p %c{1}: "
# Lines after the first line of a message are left out, except lines that name an operation that the RAPIDS
# Accelerator leaves on the CPU.
_LEFT_OUT = r"[\r\n]++(?![^\r\n]*cannot run on GPU)[^\r\n]*"
_FIRST_LINES = rf"{_HEAD}%replace{{%m%notEmpty{{: %throwable{{short.message}}}}}}{{{_LEFT_OUT}}}{{}}%n"
_ALL_LINES = f"{_HEAD}%m%n%throwable"

_TRACEBACK = "Traceback (most recent call last)"
_STACK = re.compile(rf"^\s+at [\w.$/]+[(]|^{re.escape(_TRACEBACK)}", re.MULTILINE)
_FRAMES = re.compile(r"^\s+(?:at [\w.$/<>]+[(].*|[.]{3} \d+ (?:more|elided).*)\n?", re.MULTILINE)
_CAUSED_BY = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_RAISED = re.compile(r"^[\w.]+(?:Error|Exception)(?:: .*)?$", re.MULTILINE)
_CALLED = re.compile(r"^An error occurred while calling .*\n: ")

_DATA_ERRORS = (
    AnalysisException,
    ArithmeticException,
    DateTimeException,
    NumberFormatException,
    SparkUpgradeException,
)
# Patterns of Spark's errors that show that data or types are wrong. A retry with the same files would fail
# again.
_OF_DATA = re.compile(
    r"org\.apache\.parquet\.[\w.]*Exception|\.AnalysisException|SchemaColumnConvertNotSupportedException"
    r"|\[(?:CANNOT_READ_FILE_FOOTER|FAILED_READ_FILE)|Encountered error while reading file"
    r"|Parquet column cannot be converted|is not a Parquet file"
    r"|Spark(?:Arithmetic|DateTime|NumberFormat|Upgrade)Exception|java\.lang\.ArithmeticException"
)
# Patterns that show another cause, such as a full disk. The error of a file reader can match patterns of both
# kinds, so the code searches for these patterns first.
_OF_SYSTEM = re.compile(
    r"No space left|OutOfMemory|ExecutorLost|FetchFailed|FileNotFoundException|AccessControlException"
    r"|AccessDenied|Permission denied|Input/output error|Stale file handle|Too many open files|Broken pipe"
    r"|Connect(?:ion)?(?:Exception| refused| reset| timed out| closed)|ConnectTimeout|SocketTimeout"
    r"|SocketException|UnknownHostException|NoRouteToHost|SSLException|ClosedChannelException|InterruptedException"
    r"|TimeoutException|SdkClientException|AWS\w*Exception|S3\w*Exception|BlockMissingException"
)
_FILE = re.compile(
    r"reading file (\S+?)\. Details|converted in file (\S+?)\. Column|footer for file: (.+?)\. Please"
    r"|(?:^|\s)(\w+:/.+?) is not a Parquet file|Path does not exist: (.+?)\.?$",
    re.MULTILINE,
)
_CAUSES = re.compile(r"^(?:: |Caused by: )(.+)$", re.MULTILINE)


class SparkLog:
    """The log of one job's JVM, in a temporary file."""

    def __init__(self) -> None:
        self._file: Path | None = None
        self._detach = lambda: None

    def attach(self) -> None:
        """Writes the log of the JVM to the temporary file from now on.

        Does nothing if there is no JVM, or if the log is written to the file already.
        """
        if self._file is not None or SparkContext._jvm is None:
            return
        try:
            number, path = tempfile.mkstemp(prefix="nightrank-", suffix=".stacks.log")
            os.close(number)
            self._file = Path(path)
            self._detach = _divert(SparkContext._jvm, path)
        except (OSError, Py4JError) as error:
            log.warning("Spark's stack traces are printed and not saved to a file: %s", error)

    def end(self, logs: str, run_date: str, job: str, error: BaseException | None = None) -> str | None:
        """Closes the temporary file and saves it in the lake. Call this method before the JVM ends.

        Args:
            logs: the folder of logs in the lake.
            run_date: the run date of the job. The file is saved in the subfolder `dt=<run_date>`.
            job: the name of the job, with which the name of the file begins.
            error: the error that ended the job; its traceback is added to the file.

        Returns:
            The path of the saved file; None if there is no stack trace.
        """
        text = self._ended()
        if error is not None:
            text += "".join(traceback.format_exception(error))
        if not _STACK.search(text):
            self._forget()
            return None
        moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        path = f"{logs}/dt={run_date}/{job}-{moment}-{uuid.uuid4().hex[:8]}.stacks.log"
        try:
            file_io.replace_text(path, text)
        except (NightrankError, OSError):
            return self._save_locally(text)
        self._forget()
        return path

    def _ended(self) -> str:
        """Stops logging to the temporary file and returns its text."""
        with suppress(Py4JError, OSError):  # the JVM itself may have ended
            self._detach()
        self._detach = lambda: None
        if self._file is None:
            return ""
        with suppress(OSError):
            return self._file.read_text(encoding="utf-8", errors="replace")
        return ""

    def _save_locally(self, text: str) -> str | None:
        """Writes the text to a temporary file and returns its path. If the write fails, prints the text."""
        try:
            if self._file is None:
                number, path = tempfile.mkstemp(prefix="nightrank-", suffix=".stacks.log")
                os.close(number)
                self._file = Path(path)
            self._file.write_text(text, encoding="utf-8")
        except OSError:
            print(text, file=sys.stderr)
            self._forget()
            return None
        path, self._file = str(self._file), None
        return path

    def _forget(self) -> None:
        """Deletes the temporary file."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)
            self._file = None


def _divert(jvm: Any, path: str) -> Any:
    """Makes log4j write all lines of all messages to a file.

    If log4j has Spark's default configuration, standard error then gets only the first line of each message,
    and the accelerator's lines about operations that stay on the CPU.

    Returns:
        A function that ends the logging to this file.
    """
    core = jvm.org.apache.logging.log4j.core
    context = jvm.org.apache.logging.log4j.LogManager.getContext(False)
    configuration = context.getConfiguration()
    root = configuration.getRootLogger()

    def layout(pattern: str) -> Any:
        return (
            core.layout.PatternLayout.newBuilder()
            .withPattern(pattern)
            .withAlwaysWriteExceptions(False)
            .build()
        )

    def add(builder: Any, name: str, pattern: str) -> None:
        appender = builder.setName(name).setLayout(layout(pattern)).build()
        appender.start()
        root.addAppender(appender, None, None)

    add(core.appender.FileAppender.newBuilder().withFileName(path), f"{_NAME}-file", _ALL_LINES)
    if str(configuration.getConfigurationSource().getLocation()).endswith(_SPARK_DEFAULTS):
        error_output = core.appender.ConsoleAppender.Target.SYSTEM_ERR
        add(
            core.appender.ConsoleAppender.newBuilder().setTarget(error_output),
            f"{_NAME}-console",
            _FIRST_LINES,
        )
        root.removeAppender("console")
    context.updateLoggers()

    def detach() -> None:
        root.removeAppender(f"{_NAME}-file")
        context.updateLoggers()

    return detach


def without_frames(text: str) -> str:
    """Returns a message without the lines of Java stack traces."""
    return _FRAMES.sub("", text).rstrip()


def root_cause(error: BaseException) -> str:
    """Returns the line of an error message that describes the original error.

    The message of `error` may contain Python and Java stack traces.
    """
    text = _CALLED.sub("", str(error).strip())
    raised = [line for line in _RAISED.findall(text) if _TRACEBACK not in line]
    if _TRACEBACK in text and raised:
        return str(raised[-1])
    if caused := _CAUSED_BY.findall(text):
        return str(caused[-1])
    first = text.splitlines()[0] if text else ""
    return f"{type(error).__name__}: {first}".rstrip(": ")


def data_error_in(error: BaseException) -> DataError | None:
    """Converts an exception of Spark to a DataError if wrong data or a wrong configuration has caused it.

    For example, Spark cannot read a damaged Parquet file, or a column of another type. Returns None for
    other exceptions, such as those of a full disk, a lost executor or a refused connection, because then a
    retry may help.
    """
    if not isinstance(error, PySparkException | Py4JError) or isinstance(error, PythonException):
        return None
    text = f"{error}\n{getattr(error, 'stackTrace', '')}"
    causes = _CAUSES.findall(text) or [text]
    if any(_OF_SYSTEM.search(cause) for cause in causes):
        return None
    if not isinstance(error, _DATA_ERRORS) and not any(_OF_DATA.search(cause) for cause in causes):
        return None
    named = _FILE.search(text)
    if named is None:
        return DataError(
            f"Spark cannot compute the rows: {root_cause(error)}",
            "check that the columns and types in the configuration fit the raw files, and correct the "
            "configuration or the files; if both are correct, report this error",
        )
    name = next(group for group in named.groups() if group)
    path = re.sub(r"^file:/+", "/", unquote(name))
    return DataError(
        f"{path} cannot be read: {root_cause(error)}",
        "if this is a raw file, deliver it again; if it is a file of the lake, run the job that writes its "
        "table again",
    )
