"""Runs one job as a spark-submit process of its own: its command, its log, its exit code, its end when we must end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from conf.errors import ConfigError, NightrankError
from storage.job_summary import log_tail, summary_in

JOBS = Path(__file__).resolve().parent.parent
_POLL_S = 0.2
_GRACE_S = 10.0
_FAILED = re.compile(r"^\S+ nightrank: \w+ failed")
_CHATTER = re.compile(
    r"^\d\d/\d\d/\d\d \d\d:\d\d:\d\d (INFO|WARN) "
)  # Spark's own, also after an error of ours
_EXCEPTION = re.compile(r"^[\w.]+(Error|Exception)\b")


@dataclass(frozen=True)
class Stage:
    """One job for one day. `overrides` are `--set` values of this stage alone; `log` is where its output goes."""

    job: str
    run_date: str
    log: Path
    overrides: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The job's name, unless a night runs the job twice: unique in a night, and the name of its log."""
        return self.log.stem


@dataclass(frozen=True)
class Submission:
    """What all stages of a night have in common: Spark's properties file, the configuration, the `--set` values."""

    profile: str
    config: str
    overrides: tuple[str, ...] = ()

    def command(self, stage: Stage) -> list[str]:
        """The spark-submit command line of a stage.

        Raises:
            ConfigError: the properties file does not exist, or pyspark is not installed beside this interpreter.
        """
        if not Path(self.profile).is_file():
            raise ConfigError(
                f"the Spark profile {self.profile} does not exist", "give --profile a file of conf/spark/"
            )
        words = [str(spark_submit()), "--properties-file", self.profile, str(JOBS / f"{stage.job}.py")]
        words += ["--config", self.config, "--run-date", stage.run_date]
        for override in (*self.overrides, *stage.overrides):
            words += ["--set", override]
        return words


@dataclass(frozen=True)
class Outcome:
    """How a stage ended. `closing` is the JSON object its standard output ended with, empty when there is none."""

    stage: Stage
    exit_code: int
    seconds: float
    closing: dict[str, Any] = field(default_factory=dict)


class StageError(NightrankError):
    """A stage ended with another exit code than 0; carries that code."""

    def __init__(self, outcome: Outcome) -> None:
        said = "\n".join(f"  {line}" for line in last_words(outcome.stage.log))
        problem = (
            f"{outcome.stage.name} ended with exit code {outcome.exit_code} ({_meaning(outcome.exit_code)})"
        )
        super().__init__(f"{problem}\n{said}" if said else problem, f"read {outcome.stage.log}")
        self.exit_code = outcome.exit_code
        self.outcome = outcome


class StoppedError(NightrankError):
    """We were told to end and ended the running stage first; carries the shell's exit code for the signal."""

    def __init__(self, number: int, stage: str) -> None:
        name = signal.Signals(number).name
        super().__init__(
            f"{name} arrived; {stage} was stopped",
            "run the same night again: nothing half-written is visible",
        )
        self.exit_code = 128 + number


class Interruptions:
    """Context that remembers the first SIGTERM, SIGINT or SIGHUP instead of acting on it at an unsafe instant."""

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
    """The spark-submit of the environment this interpreter belongs to."""
    found = Path(sys.executable).parent / "spark-submit"
    if not found.exists():
        raise ConfigError(f"{found} does not exist", "run `make setup` and use .venv/bin/python")
    return found


def environment() -> dict[str, str]:
    """This process's environment, with Python and Spark those of this interpreter."""
    stray = ("SPARK_HOME", "PYSPARK_DRIVER_PYTHON")  # another Spark's jars, another interpreter's packages
    kept = {name: value for name, value in os.environ.items() if name not in stray}
    return {**kept, "PYSPARK_PYTHON": sys.executable}


def run_stage(
    stage: Stage, submission: Submission, interruptions: Interruptions, tick: Callable[[float], None]
) -> Outcome:
    """Runs a stage to its end, both its outputs in its log; `tick` hears the seconds gone by while it runs.

    Raises:
        StoppedError: a signal arrived; the stage's process group has been ended.
        ConfigError: the stage cannot be started.
    """
    command = submission.command(stage)
    stage.log.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with stage.log.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(),
            start_new_session=True,  # a process group of its own, so that all of it can be ended
        )
        exit_code = None
        try:
            while exit_code is None and interruptions.received is None:
                with suppress(subprocess.TimeoutExpired):
                    exit_code = process.wait(timeout=_POLL_S)
                tick(time.monotonic() - start)
        finally:
            if exit_code != 0:
                end_group(process)  # a killed JVM leaves its Python driver behind
    if interruptions.received is not None and exit_code is None:
        raise StoppedError(interruptions.received, stage.name)
    code = 128 - process.returncode if process.returncode < 0 else process.returncode
    return Outcome(stage, code, time.monotonic() - start, summary_in(stage.log))


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Asks the process group to end, and kills what of it is still there after ten seconds or outlives its leader."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_words(log: Path) -> list[str]:
    """The lines of a failed stage's log that say why: the typed error and its remedy, else the last lines."""
    lines = [line for line in log_tail(log) if line.strip() and not _CHATTER.match(line)]
    starts = [index for index, line in enumerate(lines) if _FAILED.match(line)]
    if not starts:
        return lines[-5:]
    said = lines[starts[-1] :]
    end = next((index for index, line in enumerate(said) if "what to do:" in line), len(said) - 1)
    if end <= 5:
        return said[: end + 1]
    causes = [line for line in said[1:end] if _EXCEPTION.match(line)]
    return [said[0], *causes[-1:], said[end]]


def _meaning(exit_code: int) -> str:
    known = {2: "configuration", 3: "data", 4: "infrastructure: worth a retry"}
    if exit_code in known:
        return known[exit_code]
    if exit_code > 128:
        with suppress(ValueError):
            return f"killed by {signal.Signals(exit_code - 128).name}: worth a retry"
    return "crashed: worth a retry"
