"""Runs a stage as a job: logs, the Spark session, the run record, the job summary, exit codes."""

from __future__ import annotations

import argparse
import atexit
import logging
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from conf.errors import (
    EXIT_CONFIG,
    EXIT_CRASHED,
    EXIT_DATA,
    EXIT_INFRASTRUCTURE,
    EXIT_OK,
    DataError,
    InfrastructureError,
    NightrankError,
    raised_in,
)
from conf.lazy_imports import allow_pandas
from conf.load import load_config, parse_date
from conf.messages import PrintableFormatter
from conf.process import ignore_imported
from jobs.checks import check_config
from jobs.command_line import INTERRUPTED, add_wait, job_parser, report_interruption
from reporting.monitoring.run_observer import Observer
from spark.error_log import SparkLog, data_error_in, root_cause, without_frames
from spark.profile import DEFAULT_PROFILE, use_profile
from spark.session import build_session
from storage.file_digests import path_of_damaged
from storage.fsck import mark_file
from storage.job_summary import JobSummary
from storage.leases import lease
from storage.run_context import RunContext

log = logging.getLogger("nightrank")

# Java's message if the interpreter of Spark's Python workers is missing.
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]+)"')
_PUBLISH_NOTHING = frozenset({"plan_night"})  # several processes may run one of these jobs for the same date
_LOG_FORMAT = "%(asctime)s %(name)s: %(message)s"


def run_job(
    name: str, description: str, stage: Callable[[RunContext], JobSummary], argv: list[str] | None = None
) -> None:
    """Runs a job that has only the options of every job, and ends the process with its exit code."""
    run_with_options(name, job_parser(name, description), lambda context, _: stage(context), argv)


def run_with_options(
    name: str,
    parser: argparse.ArgumentParser,
    stage: Callable[[RunContext, argparse.Namespace], JobSummary],
    argv: list[str] | None = None,
) -> None:
    """Runs a job with additional options, and ends the process with its exit code.

    Args:
        name: the name of the job, such as `score_daily`.
        parser: a parser of `job_parser`, with the options of the job added.
        stage: runs the stage. Its second argument is the parsed command line.
        argv: the words of the command line; None means the command line of this process.
    """
    words = sys.argv[1:] if argv is None else argv
    write_summary = print if {"-h", "--help"} & {*words} else separate_output()
    _log_to_stderr()
    _add_profile(parser)
    if name not in _PUBLISH_NOTHING:
        add_wait(parser)
    arguments = parser.parse_args(words)
    try:
        use_profile(arguments.profile)
        code = _run(name, lambda context: stage(context, arguments), arguments, write_summary, OwnSession())
    except NightrankError as error:  # the profile cannot be used, or the summary cannot be written
        log.error("%s failed: %s", name, error)
        code = error.exit_code
    except KeyboardInterrupt:
        code = report_interruption(name)
    if code != EXIT_OK:  # a scheduler may have only the log of a job, so the log contains the exit code
        log.error("%s ended with exit code %d", name, code)
    end_job(code)


def _add_profile(parser: argparse.ArgumentParser) -> None:
    """Adds the option --profile, which names the Spark profile."""
    parser.add_argument(
        "--profile",
        metavar="CONF",
        help="Spark properties file, if the job is not started by spark-submit (default: "
        f"{DEFAULT_PROFILE} of the project)",
    )


def run_in_application(
    name: str,
    arguments: argparse.Namespace,
    stage: Callable[[RunContext], JobSummary],
    write_summary: Callable[[str], None],
    sessions: OwnSession,
) -> int:
    """Runs a job in a process that also runs other jobs. Returns the exit code of the job.

    Args:
        name: the name of the job, such as `score_daily`.
        arguments: the parsed command line, with the options of `job_parser`.
        stage: runs the stage.
        write_summary: receives the line of the job summary if the job succeeds.
        sessions: opens and closes the Spark session.
    """
    _log_to_stderr()
    try:
        return _run(name, stage, arguments, write_summary, sessions)
    except Exception:  # a bug: print the traceback, as Python does if a separate process ends
        traceback.print_exc()
        return EXIT_CRASHED


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, force=True)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(PrintableFormatter(_LOG_FORMAT, "%H:%M:%S"))
    for noisy in ("py4j", "petastorm", "alembic", "mlflow", "openlineage", "azure"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _run(
    name: str,
    stage: Callable[[RunContext], JobSummary],
    arguments: argparse.Namespace,
    write_summary: Callable[[str], None],
    sessions: OwnSession,
) -> int:
    """Runs the stage, records the run, writes the summary, and returns the exit code."""
    start = time.monotonic()
    ignore_imported()
    try:
        config = load_config(arguments.config, arguments.overrides)
        run_date = parse_date(arguments.run_date, future=arguments.future)
        context = RunContext(name, config, run_date, open_session=sessions.open)
    except NightrankError as error:  # the lake is not known yet, so the run is not recorded
        log.error("%s failed: %s", name, error)
        return error.exit_code
    observer = Observer.begin(name, config, context.run_date)
    context.recorder = observer.run
    exit_code, summary = EXIT_CRASHED, None
    failure: BaseException | None = None
    try:
        check_config(config)  # raises an error before the job does any work
        total = time.monotonic() - start
        with _lease_of(context, arguments):
            summary = stage(context).completed(name, context.run_date, context.phases, total)
        summary.line()  # raises an error for a value that is not JSON, before the run is recorded
        exit_code = EXIT_OK
        if stacks := sessions.keep_stacks(context):
            log.info("Spark logged errors that did not end the job; their stack traces are in %s", stacks)
    except (NightrankError, PySparkException, Py4JError, OSError, MemoryError) as error:
        failure, exit_code = _log_failure(context, error, sessions)
        _mark_damage(failure)
    except BaseException as error:  # a bug or an interruption; raised again below
        failure, exit_code = error, INTERRUPTED if isinstance(error, KeyboardInterrupt) else EXIT_CRASHED
        if stacks := sessions.keep_stacks(context):
            log.error("%s failed; Spark's stack traces are in %s", name, stacks)
        raise
    finally:
        observer.look_at(context.started_spark)
        observer.end(exit_code, context.phases, summary if exit_code == EXIT_OK else None, failure)
        sessions.close(context)
    if summary is not None and exit_code == EXIT_OK:
        total = time.monotonic() - start
        write_summary(summary.completed(name, context.run_date, summary.seconds, total).line())
    return exit_code


def _lease_of(context: RunContext, arguments: argparse.Namespace) -> AbstractContextManager[None]:
    """Returns the lease (lock) of the job; a context manager without effect if it publishes nothing.

    Raises:
        InfrastructureError: see storage.leases.lease.
    """
    if context.name in _PUBLISH_NOTHING:
        return nullcontext()
    return lease(context.lake, context.run_date, context.name, context.config.name, arguments.wait)


def _log_failure(context: RunContext, error: Exception, sessions: OwnSession) -> tuple[Exception, int]:
    """Logs the error that ended the job. Returns the original error and its exit code."""
    raised = raised_in(str(error)) if isinstance(error, PySparkException | Py4JError) else None
    # An error of the configuration or the data needs no stack trace.
    is_complete = isinstance(error, NightrankError) and (
        error.exit_code in (EXIT_CONFIG, EXIT_DATA) or not error.__cause__
    )
    stacks = sessions.keep_stacks(context, None if is_complete else error)
    where = f"\n  stacks: {stacks}" if stacks else ""
    if isinstance(error, NightrankError):
        log.error("%s failed: %s%s", context.name, without_frames(str(error)), where)
        return error, error.exit_code
    if raised is not None:
        log.error("%s failed in a Spark worker: %s%s", context.name, without_frames(str(raised)), where)
        return raised, raised.exit_code
    data_error = data_error_in(error)
    if data_error is not None:
        log.error("%s failed: %s%s", context.name, data_error, where)
        return data_error, data_error.exit_code
    log.error(
        "%s failed in Spark or the system around it: %s\n  what to do: %s%s",
        context.name,
        root_cause(error),
        _advice(error),
        where,
    )
    return error, EXIT_INFRASTRUCTURE


def _mark_damage(error: Exception) -> None:
    """Records a damaged data file in its manifest, so that a rerun writes the table again."""
    path = path_of_damaged(error) if isinstance(error, DataError) else None
    try:
        if path is not None and mark_file(path):
            log.info("%s is marked as damaged: the job that wrote it rewrites it in its next run", path)
    except (NightrankError, OSError) as failure:
        log.warning("%s cannot be marked as damaged: %s", path, failure)


def _advice(error: Exception) -> str:
    """Returns the remedy for an error of Spark, of a file or of a network."""
    if program := _NO_PROGRAM.search(str(error)):
        return (
            f"a node does not have {program[1]}: install the packed environment there "
            "(docs/clusters.md#what-every-node-needs), or correct spark.pyspark.python in the Spark profile"
        )
    if isinstance(error, PermissionError):
        return "give the user of the job the permission to use this file or folder, then run the job again"
    return "if you can remove the cause, such as a full disk, do that first; then run the job again"


# The code below ensures that standard output of a job contains only its summary.
#
# spark-submit merges standard error of the driver's Python into its standard output, and copies both to its
# own standard output. So programs that read the summary would also get logs, warnings and tracebacks.
# Therefore, under spark-submit, this module makes the JVM copy everything to standard error and write the
# summary to standard output itself. All other output of the process, including that of libraries, also goes
# to standard error.

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
            "this JVM does not support sending logs to standard error, so standard output also contains "
            "logs: %s",
            error,
        )
        return _print


def _print(line: str) -> None:
    """Writes a line to standard output without a JVM.

    Raises:
        InfrastructureError: standard output cannot be written.
    """
    try:
        print(line, flush=True)
    except OSError as error:
        raise InfrastructureError(
            f"the job is done, but its summary cannot be written to standard output: {error}",
            "make standard output writable, then run the job again",
        ) from error


def _separated(jvm: Any) -> Callable[[str], None]:
    """Redirects the JVM's standard output to standard error.

    Returns a function that writes a line to the real standard output.
    """
    # The thread of spark-submit that copies output keeps a reference to System.out, so System.setOut would
    # have no effect on it. Instead, this function replaces the number in the FileDescriptor object to which
    # System.out writes. Spark opens java.io for reflection in every JVM that it starts.
    descriptor = jvm.java.io.FileDescriptor
    number = jvm.java.lang.Class.forName("java.io.FileDescriptor").getDeclaredField("fd")
    number.setAccessible(True)
    real = descriptor()
    number.setInt(real, _STDOUT)
    stream = jvm.java.io.FileOutputStream(real)
    number.setInt(descriptor.out, _STDERR)
    joined = _are_one_file(jvm.java.lang.ProcessHandle.current().pid())

    def write(line: str) -> None:
        # If both streams are the same file, a part of a log line may precede the summary, so end this line.
        stream.write(bytearray(f"\n{line}\n" if joined else f"{line}\n", "utf-8"))

    return write


def _are_one_file(pid: int) -> bool:
    """Returns whether standard output and error of a process are the same file; True if this is unknown."""
    try:
        streams = [os.stat(f"/proc/{pid}/fd/{number}") for number in (_STDOUT, _STDERR)]
    except OSError:
        return True
    return os.path.samestat(*streams)


# The functions below end a process without freeing its objects, because freeing them takes time.

_JOBS = Path(__file__).parent


def end_process(exit_code: int) -> NoReturn:
    """Runs the functions of `atexit`, which delete temporary files, and then ends this process at once.

    As when the interpreter ends, this function first waits for the end of the other threads. Otherwise a
    thread of a process pool and `atexit` could wait for the same process, and one of them would wait forever.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # None: the process was started with a closed stream
            with suppress(OSError):
                stream.flush()
    os._exit(exit_code)


def end_job(exit_code: int) -> NoReturn:
    """Ends the process of a job.

    Raises:
        SystemExit: this process was not started for a job of this project, or the job has used a JVM,
            whose connections the interpreter must close.
    """
    is_job = Path(sys.argv[0]).resolve().parent == _JOBS
    if is_job and SparkContext._gateway is None:
        end_process(exit_code)
    sys.exit(exit_code)


# The classes below provide the Spark session of a job. A session is built for one job, or it is shared by the
# jobs of an application.


@dataclass
class OwnSession:
    """Builds a job's Spark session, and saves the Java stack traces that Spark logs."""

    error_log: SparkLog = field(default_factory=SparkLog)

    def open(self, context: RunContext) -> SparkSession:
        """Builds the session.

        Building can fail, so this method attaches the error log before it builds the session. It attaches the
        log again afterwards, because the JVM may have started only then.
        """
        allow_pandas()
        self.error_log.attach()
        session = self._build(context)
        self.error_log.attach()
        return session

    def keep_stacks(self, context: RunContext, error: BaseException | None = None) -> str | None:
        """Saves the stack traces of Spark's log and of `error`.

        Returns the path; None without stack traces.
        """
        return self.error_log.end(context.lake.logs, context.run_date, context.name, error)

    def close(self, context: RunContext) -> None:
        """Ends the job's use of the session."""
        context.stop()

    def _build(self, context: RunContext) -> SparkSession:
        return build_session(
            f"nightrank {context.name} {context.run_date}", event_logs=context.lake.event_logs
        )


@dataclass
class SharedSession:
    """The Spark session of several jobs that run in one process, one after the other.

    The session is built for the first job that needs it. When a job ends, its cached tables are removed from
    Spark.
    """

    _session: SparkSession | None = None

    def of_job(self) -> OwnSession:
        """Returns the object through which the next job uses this session."""
        return _Borrowed(self)

    def get(self, context: RunContext) -> SparkSession:
        """Returns the session. Builds it if it does not exist, with event logs in the lake of the job."""
        if self._session is None:
            self._session = build_session(
                f"nightrank {context.config.name} {context.run_date}", event_logs=context.lake.event_logs
            )
        return self._session

    def clean(self) -> None:
        """Removes the cached tables of the job that has ended."""
        if self._session is not None:
            self._session.catalog.clearCache()

    def stop(self) -> None:
        """Stops the session if it was built."""
        if self._session is not None:
            self._session.stop()
            self._session = None


@dataclass
class _Borrowed(OwnSession):
    """A job's access to a session that it shares with other jobs."""

    shared: SharedSession = field(default_factory=SharedSession)

    def __init__(self, shared: SharedSession) -> None:
        super().__init__()
        self.shared = shared

    def close(self, context: RunContext) -> None:
        """Ends this job's use of the session, so that the next job can use it."""
        if context.started_spark is not None:
            self.shared.clean()

    def _build(self, context: RunContext) -> SparkSession:
        return self.shared.get(context)
