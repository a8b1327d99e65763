"""Runs all stages of a run in one Spark application: a child process that runs the stages one by one.

The child process (jobs/stage_server/) starts one JVM and imports the packages once for all stages. It
receives the job and the arguments of each stage through a pipe. Through another pipe, it returns the exit
code and the job summary. All output of the child, its JVM and its Python workers arrives through a third
pipe, and the launcher writes it to the log of the running stage. If a stage fails, the launcher ends the
child process, and the next stage starts a new process. So no stage runs in a process in which another stage
has failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from conf.errors import EXIT_OK
from jobs.chain.submit import (
    JOBS,
    Interruptions,
    Launcher,
    Stage,
    StageOutcome,
    StoppedError,
    Submission,
    end_group,
    environment,
    exit_code_of,
    log_error,
)
from spark.profile import read_properties, require_java
from storage.job_summary import JobSummary

_PROGRAM = (sys.executable, "-m", "jobs.stage_server")
_POLL_S = 0.2
_PATIENCE_S = 30.0  # time limit for stopping the Spark session after the last stage
_CHUNK = 1 << 16
_LOCAL_MASTER = re.compile(r"local(\[.*\])?")
_TO_TRAIN = ("torch",)  # modules whose import takes seconds


def launcher_of(submission: Submission, *, isolate: bool) -> Launcher:
    """Returns the launcher of a run: one application if Spark runs on this machine only.

    Args:
        submission: the settings that all stages share.
        isolate: whether each stage always has a separate spark-submit process.
    """
    return SparkSubmits(submission) if isolate or not _is_local(submission) else Application(submission)


def add_isolate(parser: argparse.ArgumentParser) -> None:
    """Adds the option --isolate, which runs each stage as a separate spark-submit process."""
    parser.add_argument(
        "--isolate",
        action="store_true",
        help="run each stage as a separate spark-submit process, even if Spark runs on this machine only",
    )


def _is_local(submission: Submission) -> bool:
    """Returns whether Spark runs in one process on this machine with this profile."""
    return (
        _LOCAL_MASTER.fullmatch(read_properties(Path(submission.properties)).get("spark.master", ""))
        is not None
    )


@dataclass
class Application:
    """A launcher that runs all stages in one application. Call `close` at the end."""

    submission: Submission
    _child: _Child | None = field(default=None, repr=False)
    _modules: tuple[str, ...] = ()
    _used: bool = False

    def prepare(self, *, train: bool) -> None:
        """Starts the child process, its JVM, and the imports of a training. See `Launcher`."""
        self.submission.require_profile(submits=False)
        self._modules = _TO_TRAIN if train else ()
        self._start()

    def _start(self) -> _Child:
        """Returns the child process. Starts it if it is not running."""
        if self._child is None or self._child.process.poll() is not None:
            self.close()
            self._child, self._used = _Child.start(self.submission.properties, self._modules), False
        return self._child

    def run(self, stage: Stage, interruptions: Interruptions, tick: Callable[[float], None]) -> StageOutcome:
        """Runs a stage and waits for its end. See `Launcher`."""
        self.submission.require_profile(submits=False)
        start = time.monotonic()
        exit_code = None
        try:
            with stage.open_log() as log:
                child, self._used = self._start(), True
                child.request({"job": stage.job, "arguments": self.submission.arguments(stage)})
                while exit_code is None and interruptions.received is None:
                    exit_code = child.pump(log)
                    tick(time.monotonic() - start)
        finally:
            if exit_code != EXIT_OK and self._child is not None:
                self._child.kill()
                self._child = None
        if exit_code is None:
            raise StoppedError(interruptions.received or 0, stage.name)
        return StageOutcome(stage, exit_code, time.monotonic() - start, JobSummary.in_log(stage.log))

    def close(self) -> None:
        """Ends the application. Waits until Spark has stopped, which completes the event log.

        If no stage has run, this method does not wait, because the process may still be starting.
        """
        if self._child is not None:
            if self._used:
                self._child.close()
            else:
                self._child.kill()
            self._child = None


def _append(log: BinaryIO, piece: bytes) -> None:
    """Writes to the log of a stage. Raises InfrastructureError if it cannot be written."""
    rest = memoryview(piece)
    try:
        while rest:
            rest = rest[log.write(rest) :]
    except OSError as error:  # for example, the disk is full
        raise log_error(log.name, error) from error


@dataclass
class _Child:
    """The child process and the pipes to it.

    Attributes:
        process: the process, which is the leader of a new process group.
        output: the pipe with the output of this process and of all processes that it has started.
        answers: the pipe of its answers, one line of JSON per stage.
    """

    process: subprocess.Popen[bytes]
    output: int
    answers: int
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _partial: bytes = b""

    @classmethod
    def start(cls, profile: str, modules: Sequence[str]) -> _Child:
        """Starts the child process with the Spark properties of a profile.

        It imports `modules` immediately.
        """
        output, output_end = os.pipe()
        answers, answers_end = os.pipe()
        root = str(JOBS.parent)
        paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        try:
            process = subprocess.Popen(
                [*_PROGRAM, profile, str(answers_end), *modules],
                stdin=subprocess.PIPE,
                stdout=output_end,
                stderr=output_end,
                env={**environment(), "PYTHONPATH": paths},
                pass_fds=[answers_end],
                start_new_session=True,  # a new process group, so that all its processes can be ended
            )
        finally:
            os.close(output_end)
            os.close(answers_end)
        os.set_blocking(output, False)
        child = cls(process, output, answers)
        child._selector.register(output, selectors.EVENT_READ)
        child._selector.register(answers, selectors.EVENT_READ)
        return child

    def request(self, request: dict[str, object]) -> None:
        """Asks the child to run a stage. If the child has ended, `pump` returns its exit code."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()

    def pump(self, log: BinaryIO) -> int | None:
        """Copies output to a log until there is an answer, for at most 0.2 seconds.

        Returns:
            The exit code of the stage; None if the stage is still running. If the child has ended, this is
            the exit code of the child.
        """
        deadline = time.monotonic() + _POLL_S
        while (left_s := deadline - time.monotonic()) > 0:
            ready = {key.fd for key, _ in self._selector.select(left_s)}
            if self.output in ready and not self._copy(log):
                self._selector.unregister(self.output)
            if self.answers in ready:
                self._partial += os.read(self.answers, _CHUNK)
                line, found, self._partial = self._partial.partition(b"\n")
                if found:
                    return self._answered(json.loads(line), log)
                self._partial = line
                break  # the pipe was closed: the child has ended or is about to end
        if self.process.poll() is None:
            return None
        self._copy(log)
        return exit_code_of(self.process) or 1  # a child that ends without an answer has failed

    def _answered(self, answer: dict[str, object], log: BinaryIO) -> int:
        self._copy(log)
        if answer["summary"] is not None:
            _append(log, f"{answer['summary']}\n".encode())
        return int(str(answer["exit_code"]))

    def _copy(self, log: BinaryIO | None) -> bool:
        """Copies the output that has arrived to a log. Returns False at the end of the output."""
        while True:
            try:
                piece = os.read(self.output, _CHUNK)
            except BlockingIOError:
                return True
            if not piece:
                return False
            if log is not None:
                _append(log, piece)

    def close(self) -> None:
        """Asks the child to end, waits for its end, and ends all remaining processes."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        end = time.monotonic() + _PATIENCE_S
        while self.process.poll() is None and time.monotonic() < end:
            self._selector.select(_POLL_S)
            self._copy(None)  # a full pipe would block the child
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=0.02)
        self.kill()

    def kill(self) -> None:
        """Ends the child and all processes that it has started."""
        end_group(self.process)
        self._selector.close()
        for number in (self.output, self.answers):
            os.close(number)
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()


# Runs each stage as a separate spark-submit process.


@dataclass(frozen=True)
class SparkSubmits:
    """A launcher of stages. Each stage is a spark-submit process, as on a cluster or under a scheduler."""

    submission: Submission

    def prepare(self, *, train: bool) -> None:
        """Checks the profile. No process is started before its stage."""
        self.submission.require_profile(submits=True)
        require_java()

    def run(self, stage: Stage, interruptions: Interruptions, tick: Callable[[float], None]) -> StageOutcome:
        """Runs a stage and waits for its end. See `Launcher`."""
        command = self.submission.command(stage)
        start = time.monotonic()
        with stage.open_log() as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(),
                start_new_session=True,  # a new process group, so that all its processes can be ended
            )
            exit_code = None
            try:
                while exit_code is None and interruptions.received is None:
                    with suppress(subprocess.TimeoutExpired):
                        exit_code = process.wait(timeout=_POLL_S)
                    tick(time.monotonic() - start)
            finally:
                if exit_code != 0:
                    end_group(process)  # a killed JVM does not end its Python driver
        if interruptions.received is not None and exit_code is None:
            raise StoppedError(interruptions.received, stage.name)
        code = exit_code_of(process)
        return StageOutcome(stage, code, time.monotonic() - start, JobSummary.in_log(stage.log))

    def close(self) -> None:
        """Does nothing, because no process outlives its stage."""
