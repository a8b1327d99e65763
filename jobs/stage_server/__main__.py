"""The process of an application: runs the stages that its parent requests, one after the other.

    python -m jobs.stage_server PROFILE ANSWERS [MODULE …]

PROFILE is the file of Spark's properties. The modules are imported by a thread while the first stage runs,
because a later stage needs them and their import takes seconds. If modules are given, a model will be
trained, so the process that writes to MLflow is started too.

Standard input has one line of JSON per stage, with the keys `job` and `arguments`. After each stage, one line
of JSON with the keys `exit_code` and `summary` is written to the file descriptor ANSWERS. The process ends
when standard input ends. If that happens while a stage is running, the parent has died: the process then ends
its whole process group.
"""

from __future__ import annotations

import json
import os
import queue
import shlex
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import BinaryIO, NoReturn, TypedDict

from pyspark import SparkContext

from conf.errors import EXIT_OK
from jobs.command_line import add_wait, job_parser
from jobs.runner import SharedSession, end_process, run_in_application
from spark.choose_workers import cores_without_jvm
from spark.fork_server import start_server_early
from training.registry import mlflow_process


class Request(TypedDict):
    """A request to run a stage: the name of its job, and the arguments of the job's command line."""

    job: str
    arguments: list[str]


def main() -> NoReturn:
    """Runs the stages that the parent process requests, and then ends this process."""
    profile, answers = sys.argv[1], int(sys.argv[2])
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {shlex.quote(profile)} pyspark-shell"
    start_server_early()  # this server forks processes, which read the log in the first stage
    requests = _Requests()
    if cores_without_jvm() is None:  # otherwise, only a stage that needs a JVM starts one
        threading.Thread(target=_start_jvm, daemon=True).start()
    importing = threading.Thread(target=_import_modules, args=(sys.argv[3:],), daemon=True)
    shared = SharedSession()
    while (request := requests.next()) is not None:
        exit_code, summary = _run(request["job"], request["arguments"], shared, importing)
        requests.done()
        answer = {"exit_code": exit_code, "summary": summary}
        os.write(answers, f"{json.dumps(answer)}\n".encode())
    shared.stop()
    end_process(EXIT_OK)


def _run(
    job: str, arguments: list[str], shared: SharedSession, importing: threading.Thread
) -> tuple[int, str | None]:
    """Runs a stage. Returns its exit code and the line of its job summary."""
    description = str(getattr(import_module(f"jobs.{job}"), "DESCRIPTION", ""))
    stage = import_module(f"jobs.{job}").run
    if importing.ident is None:
        if len(sys.argv) > 3:
            mlflow_process.start()
        importing.start()  # start the thread only now, because it would delay the imports above
    try:
        parser = job_parser(job, description)
        add_wait(parser)
        parsed = parser.parse_args(arguments)
    except SystemExit as ended:
        return int(str(ended.code)), None
    lines: list[str] = []
    exit_code = run_in_application(job, parsed, stage, lines.append, shared.of_job())
    sys.stdout.flush()
    sys.stderr.flush()
    return _signal_of_jvm() or exit_code, lines[-1] if lines else None


def _signal_of_jvm() -> int | None:
    """Returns 128 plus the number of the signal that ended the JVM; None if no signal ended it."""
    process = getattr(SparkContext._gateway, "proc", None)
    code = None if process is None else process.poll()
    return 128 - code if code is not None and code < 0 else None


def _start_jvm() -> None:
    """Starts the JVM while this process imports the packages of the stages.

    If the start fails, the first stage tries again and reports the error.
    """
    with suppress(Exception):
        SparkContext._ensure_initialized()


def _import_modules(names: Sequence[str]) -> None:
    """Imports some modules. If an import fails, the stage that needs the module reports the error."""
    for name in names:
        with suppress(Exception):
            import_module(name)


class _Requests:
    """The requests of the parent process, read from standard input by a thread."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Request | None] = queue.Queue()
        self._idle = threading.Event()
        self._idle.set()
        stream = os.fdopen(os.dup(0), "rb")
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)  # processes that stages start must not read requests
        os.close(nothing)
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def next(self) -> Request | None:
        """Waits for the next request and returns it; None at the end of the input."""
        return self._queue.get()

    def done(self) -> None:
        """Records that the work on the last request has ended."""
        self._idle.set()

    def _read(self, stream: BinaryIO) -> None:
        for line in stream:
            self._idle.clear()
            self._queue.put(json.loads(line))
        if not self._idle.is_set():
            os.killpg(0, signal.SIGTERM)
        self._queue.put(None)


if __name__ == "__main__":
    main()
