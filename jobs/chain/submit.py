"""Defines stages of a run, their command lines and outcomes, and handles signals and process groups."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, Protocol

from conf.errors import ConfigError, InfrastructureError, NightrankError, meaning_of
from spark.profile import find_profile, read_properties, require_files, require_java
from storage.job_summary import JobSummary, log_tail

JOBS = Path(__file__).resolve().parent.parent
_GRACE_S = 10.0
_FAILED = re.compile(r"^\S+ nightrank: \w+ failed")
# Lines that Spark itself logs. They may follow the error that a job logs.
_SPARK_LINE = re.compile(r"^\d\d/\d\d/\d\d \d\d:\d\d:\d\d (INFO|WARN) ")
_FRAME = re.compile(r"^\s+at [\w.$/<>]+\(|^\s+\.{3} \d+ (more|elided)")
_EXCEPTION = re.compile(r"^[\w.]+(Error|Exception)\b")


@dataclass(frozen=True)
class Stage:
    """A stage: one job for one day.

    `overrides` are its `--set` values, and its output is written to `log`.
    """

    job: str
    run_date: str
    log: Path
    overrides: tuple[str, ...] = ()

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
    """Returns the error for the log of a stage that cannot be written."""
    return InfrastructureError(
        f"cannot write the log of {Path(path).stem}: {error}",
        "check that `lake` is a folder that you can write, and that the disk is not full",
    )


@dataclass(frozen=True)
class Submission:
    """The settings that all stages of a run share: Spark's properties file, configuration, `--set` values.

    If `future` is true, run dates may be later than tomorrow (--future). Each stage waits up to `wait_s`
    seconds if another process runs its job for the same date (--wait).
    """

    profile: str
    config: str
    overrides: tuple[str, ...] = ()
    future: bool = False
    wait_s: float = 0.0

    def command(self, stage: Stage) -> list[str]:
        """Returns the spark-submit command line of a stage.

        Raises:
            ConfigError: the properties file does not exist or names a file that does not exist, JAVA_HOME has
                no Java, or this interpreter has no pyspark.
        """
        self.require_profile(submits=True)
        require_java()
        job = str(JOBS / f"{stage.job}.py")
        return [str(spark_submit()), "--properties-file", self.properties, job, *self.arguments(stage)]

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

    def require_profile(self, *, submits: bool) -> None:
        """Raises ConfigError if the properties file, or a file that it names, does not exist.

        Args:
            submits: whether spark-submit will start the stages.
        """
        require_files(read_properties(Path(self.properties)), self.properties, submits=submits)


@dataclass(frozen=True)
class StageOutcome:
    """The outcome of a stage. `summary` is the last job summary in its log; None without a job summary."""

    stage: Stage
    exit_code: int
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
            train: whether a stage will train a model.

        Raises:
            ConfigError: the Spark profile does not exist.
        """

    def run(self, stage: Stage, interruptions: Interruptions, tick: Callable[[float], None]) -> StageOutcome:
        """Runs a stage and waits for its end. The log of the stage receives standard output and error.

        Args:
            stage: the job, the day and the log.
            interruptions: the signals that this process has received.
            tick: a function that is called several times a second, with the seconds since the stage began.

        Raises:
            StoppedError: a signal arrived; all processes of the stage have been ended.
            ConfigError: the stage cannot be started.
        """

    def close(self) -> None:
        """Ends all remaining processes. The launcher can be used again afterwards."""


class StageError(NightrankError):
    """An error: a stage ended with an exit code other than 0. The error has the same exit code."""

    def __init__(self, outcome: StageOutcome) -> None:
        excerpt = "\n".join(f"  {line}" for line in error_excerpt(outcome.stage.log))
        problem = (
            f"{outcome.stage.name} ended with exit code {outcome.exit_code} ({meaning_of(outcome.exit_code)})"
        )
        super().__init__(f"{problem}\n{excerpt}" if excerpt else problem, f"read {outcome.stage.log}")
        self.exit_code = outcome.exit_code
        self.outcome = outcome


class StoppedError(NightrankError):
    """An error: a signal stopped the running stage. `exit_code` is 128 plus the number of the signal."""

    def __init__(self, number: int, stage: str) -> None:
        name = signal.Signals(number).name
        super().__init__(
            f"{name} arrived; {stage} was stopped",
            "start the same run again; readers of the tables see only complete data",
        )
        self.exit_code = 128 + number


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
    )  # these variables may name other jars and packages
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
