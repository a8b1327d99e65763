"""Starts the stages of a run: each as a spark-submit process, or all in one Spark application.

The module also defines the command lines and outcomes of stages, and handles signals and process groups.

An application is a child process that runs the stages one by one. The child process
(jobs/stage_server/) starts one JVM and imports the packages once for all stages. It receives the job
and the arguments of each stage through a pipe. Through another pipe, it returns the exit code and the job
summary. All output of the child, its JVM and its Python workers arrives through a third pipe. The launcher
writes this output to the log of the running stage. If a stage fails, the launcher ends the child process, and
the next stage starts a new process. So a stage never runs in a process in which another stage has failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, Protocol

from conf.errors import EXIT_OK, ConfigError, InfrastructureError, NightrankError, meaning_of
from spark.profile import find_profile, read_properties, require_files, require_java, require_master
from storage.job_summary import JobSummary, log_tail

JOBS = Path(__file__).resolve().parent.parent
_GRACE_S = 10.0
_FAILED = re.compile(r"^\S+ nightrank: \w+ failed")
# Lines that Spark logs. In the log of a job, such lines may follow the line of the error.
_SPARK_LINE = re.compile(r"^\d\d/\d\d/\d\d \d\d:\d\d:\d\d (INFO|WARN) ")
_FRAME = re.compile(r"^\s+at [\w.$/<>]+\(|^\s+\.{3} \d+ (more|elided)")
_EXCEPTION = re.compile(r"^[\w.]+(Error|Exception)\b")


@dataclass(frozen=True)
class Stage:
    """A stage: one job for one day.

    Attributes:
        log: the local file to which the output of the job is written.
        overrides: the `--set` values of the job, each of the form `a.b=value`.
        remote_log: the URI to which the log is copied when the stage has ended, because the lake is not
            local; None for a local lake.
    """

    job: str
    run_date: str
    log: Path
    overrides: tuple[str, ...] = ()
    remote_log: str | None = None

    @property
    def name(self) -> str:
        """The name of the stage and of its log. If the run has the job only once, it is the job's name."""
        return self.log.stem

    def open_log(self) -> BinaryIO:
        """Opens the log for writing without a buffer, and makes its folder.

        Raises:
            InfrastructureError: the log cannot be written.
        """
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            return self.log.open("wb", buffering=0)
        except OSError as error:
            raise log_error(self.log, error) from error


def log_error(path: str | Path, error: OSError) -> InfrastructureError:
    """Returns the error that is raised if the log of a stage cannot be written."""
    return InfrastructureError(
        f"cannot write the log of {Path(path).stem}: {error}",
        "check that `lake` is a folder that you can write, and that the disk is not full",
    )


@dataclass(frozen=True)
class Submission:
    """The settings that the stages of a run share: Spark's properties file, configuration, `--set` values.

    If `future` is true, run dates may be later than tomorrow (--future). Each stage waits up to `wait_s`
    seconds if another process runs its job for the same date (--wait). `job_profiles` maps a job to its own
    properties file (--job-profile).
    """

    profile: str
    config: str
    overrides: tuple[str, ...] = ()
    future: bool = False
    wait_s: float = 0.0
    job_profiles: Mapping[str, str] = field(default_factory=dict)

    def command(self, stage: Stage) -> list[str]:
        """Returns the spark-submit command line of a stage.

        Raises:
            ConfigError: the properties file does not exist, names a file that does not exist or has no
                spark.master, JAVA_HOME has no Java, or this interpreter has no pyspark.
        """
        self.require_profile(submits=True)
        require_java()
        job, properties = str(JOBS / f"{stage.job}.py"), self.properties_of(stage.job)
        return [str(spark_submit()), "--properties-file", properties, job, *self.arguments(stage)]

    def arguments(self, stage: Stage) -> list[str]:
        """Returns the arguments of a stage's job."""
        words = ["--config", self.config, "--run-date", stage.run_date]
        for override in (*self.overrides, *stage.overrides):
            words += ["--set", override]
        if self.wait_s:
            words += ["--wait", f"{self.wait_s:g}"]
        return [*words, *(["--future"] if self.future else [])]

    @property
    def properties(self) -> str:
        """Returns the path of the properties file. Raises ConfigError if it does not exist."""
        return find_profile(self.profile)

    def properties_of(self, job: str) -> str:
        """Returns the path of the properties file of a job. Raises ConfigError if it does not exist."""
        return find_profile(self.job_profiles.get(job, self.profile))

    @property
    def all_properties(self) -> list[str]:
        """Returns the paths of all properties files. Raises ConfigError if one of them does not exist."""
        return [find_profile(name) for name in dict.fromkeys([self.profile, *self.job_profiles.values()])]

    def require_profile(self, *, submits: bool) -> None:
        """Raises ConfigError if a properties file, or a file that it names, does not exist.

        Also raises ConfigError if spark-submit will start the stages, but a properties file has no
        spark.master.

        Args:
            submits: whether spark-submit will start the stages.
        """
        for path in self.all_properties:
            settings = read_properties(Path(path))
            if submits:
                require_master(settings, path)
            require_files(settings, path, submits=submits)


@dataclass(frozen=True)
class StageOutcome:
    """The outcome of a stage.

    Attributes:
        started_s: start of the stage, in seconds since 1970.
        seconds: duration of the stage in seconds.
        summary: the last job summary in its log; None without a job summary.
    """

    stage: Stage
    exit_code: int
    started_s: float
    seconds: float
    summary: JobSummary | None = None


class Launcher(Protocol):
    """Runs stages, each in a separate process (`SparkSubmits`) or all in one process (`Application`)."""

    @property
    def submission(self) -> Submission:
        """The settings that all stages share."""

    def prepare(self, *, train: bool) -> None:
        """Starts processes that the stages need.

        Call this before checks that take seconds, so that the processes are ready sooner.

        Args:
            train: whether a stage will train a model. If so, torch is imported early.

        Raises:
            ConfigError: the Spark profile does not exist.
        """

    def run(self, stage: Stage, interruptions: Interruptions, tick: Callable[[float], None]) -> StageOutcome:
        """Runs a stage and waits for its end. The log of the stage receives standard output and error.

        Args:
            stage: the stage to run, with its job, its day and its log.
            interruptions: the signals that this process has received.
            tick: a function that is called several times a second, with the seconds since the stage began.

        Raises:
            StoppedError: a signal arrived; all processes of the stage have been ended.
            ConfigError: the stage cannot be started.
        """

    def close(self) -> None:
        """Ends all processes that the launcher has started. It can run further stages afterwards."""


class StageError(NightrankError):
    """An error: a stage ended with an exit code other than 0. The error has the same exit code."""

    def __init__(self, outcome: StageOutcome) -> None:
        excerpt = "\n".join(f"  {line}" for line in error_excerpt(outcome.stage.log))
        problem = (
            f"{outcome.stage.name} ended with exit code {outcome.exit_code} ({meaning_of(outcome.exit_code)})"
        )
        log = outcome.stage.remote_log or outcome.stage.log
        super().__init__(f"{problem}\n{excerpt}" if excerpt else problem, f"read {log}")
        self.exit_code = outcome.exit_code
        self.outcome = outcome


class StoppedError(NightrankError):
    """An error: a signal stopped the run. `exit_code` is 128 plus the number of the signal.

    `outcome` is that of the running stage. It is None if no stage was running.
    """

    def __init__(self, number: int, stopped: str, outcome: StageOutcome | None = None) -> None:
        name = signal.Signals(number).name
        super().__init__(
            f"{name} arrived; {stopped} was stopped",
            "start the same run again; readers of the tables see only complete data",
        )
        self.exit_code = 128 + number
        self.outcome = outcome

    @classmethod
    def of_stage(cls, number: int, stage: Stage, started_s: float, seconds: float) -> StoppedError:
        """Returns the error for a stage that a signal has stopped."""
        return cls(number, stage.name, StageOutcome(stage, 128 + number, started_s, seconds))


class Interruptions:
    """A context manager that stores the first SIGTERM, SIGINT or SIGHUP, so that it can be handled later."""

    _SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruptions:
        for number in self._SIGNALS:
            self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raises StoppedError if a signal has arrived while no stage was running."""
        if self.received is not None:
            raise StoppedError(self.received, "nightly")

    def _remember(self, number: int, _: FrameType | None) -> None:
        self.received = self.received or number


def spark_submit() -> Path:
    """Returns the path of spark-submit in the Python environment of this interpreter."""
    program = Path(sys.executable).parent / "spark-submit"
    if not program.exists():
        raise ConfigError(f"{program} does not exist", "run `make setup` and use .venv/bin/python")
    return program


def environment() -> dict[str, str]:
    """Returns the environment variables of a stage, so that it uses this interpreter and its Spark.

    The other variables are those of this process.
    """
    stray = (
        "SPARK_HOME",
        "PYSPARK_DRIVER_PYTHON",
    )  # do not pass these variables on, because they may name other jars and packages
    kept = {name: value for name, value in os.environ.items() if name not in stray}
    return {**kept, "PYSPARK_PYTHON": sys.executable}


def exit_code_of(process: subprocess.Popen[bytes]) -> int:
    """Returns the exit code of a process that has ended.

    If a signal ended it, the code is 128 plus the signal's number.
    """
    return 128 - process.returncode if process.returncode < 0 else int(process.returncode)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Sends SIGTERM to a process group. Sends SIGKILL when its leader has ended, or after ten seconds."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def error_excerpt(log: Path) -> list[str]:
    """Returns the lines of a failed stage's log that explain the failure.

    These lines are the error that the job logged, and the remedy. If the job logged no error, returns the
    last lines of the log, without the frames of Java's stack traces.
    """
    left_out = (_SPARK_LINE, _FRAME)
    lines = [
        line
        for line in log_tail(log)
        if line.strip() and not any(pattern.match(line) for pattern in left_out)
    ]
    starts = [index for index, line in enumerate(lines) if _FAILED.match(line)]
    if not starts:
        return lines[-5:]
    message = lines[starts[-1] :]
    end = next((index for index, line in enumerate(message) if "what to do:" in line), len(message) - 1)
    if end <= 5:
        return message[: end + 1]
    causes = [line for line in message[1:end] if _EXCEPTION.match(line)]
    return [message[0], *causes[-1:], message[end]]


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

    Raises:
        ConfigError: a job has a properties file of its own, but all stages would run in one application.
    """
    if isolate or not _is_local(submission):
        return SparkSubmits(submission)
    for job, profile in submission.job_profiles.items():
        raise ConfigError(
            f"--job-profile {job}={profile} has no effect: the master of {submission.profile} is local, so "
            "all stages run in one Spark application",
            "leave --job-profile out, or add --isolate",
        )
    return Application(submission)


# The jobs that a run can have as stages (`RunPlan` in steps.py chooses them).
STAGE_JOBS = (
    "build_features",
    "train_model",
    "train_retriever",
    "evaluate_model",
    "refit_model",
    "learn_blend",
    "build_candidates",
    "score_daily",
    "score_rows",
    "deliver_recommendations",
    "measure_recommendations",
    "report",
)


def add_job_profile(parser: argparse.ArgumentParser) -> None:
    """Adds the option --job-profile: the Spark properties file of one job."""
    parser.add_argument(
        "--job-profile",
        action="append",
        default=[],
        type=_job_profile,
        metavar="JOB=CONF",
        dest="job_profiles",
        help="Spark properties file for one job instead of --profile, such as train_model=train.conf; may be "
        "given several times. It needs a cluster or --isolate",
    )


def _job_profile(text: str) -> tuple[str, str]:
    """Parses JOB=CONF. The job must be one of the stages that a run can have."""
    job, _, profile = text.partition("=")
    if job not in STAGE_JOBS or not profile:
        known = ", ".join(STAGE_JOBS)
        raise argparse.ArgumentTypeError(
            f"{text} is not JOB=CONF. Write the path of a properties file as CONF, and as JOB one of: {known}"
        )
    return job, profile


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
        """Starts the child process, which starts a JVM and imports modules for training. See `Launcher`."""
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
        started_s, start = time.time(), time.monotonic()
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
            raise StoppedError.of_stage(
                interruptions.received or 0, stage, started_s, time.monotonic() - start
            )
        seconds = time.monotonic() - start
        return StageOutcome(stage, exit_code, started_s, seconds, JobSummary.in_log(stage.log))

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
        answers: the pipe through which the process answers, one line of JSON per stage.
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
        """Copies the child's output to a log until the child answers, for at most 0.2 seconds.

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
        """Writes the child's output that has arrived to a log. Returns False at the end of the output."""
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


# The class below runs each stage as a separate spark-submit process.


@dataclass(frozen=True)
class SparkSubmits:
    """A launcher of stages. Each stage is a spark-submit process, as on a cluster or under a scheduler."""

    submission: Submission

    def prepare(self, *, train: bool) -> None:
        """Checks the profile. Starts no process, because each stage starts its own."""
        self.submission.require_profile(submits=True)
        require_java()

    def run(self, stage: Stage, interruptions: Interruptions, tick: Callable[[float], None]) -> StageOutcome:
        """Runs a stage and waits for its end. See `Launcher`."""
        command = self.submission.command(stage)
        started_s, start = time.time(), time.monotonic()
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
            raise StoppedError.of_stage(interruptions.received, stage, started_s, time.monotonic() - start)
        code, seconds = exit_code_of(process), time.monotonic() - start
        return StageOutcome(stage, code, started_s, seconds, JobSummary.in_log(stage.log))

    def close(self) -> None:
        """Does nothing, because no process outlives its stage."""
