"""Runs each stage as a spark-submit process of its own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from jobs.chain.submit import (
    Interruptions,
    Outcome,
    Stage,
    StoppedError,
    Submission,
    end_group,
    environment,
    exit_code_of,
)
from spark.profile import require_java
from storage.job_summary import JobSummary

_POLL_S = 0.2


@dataclass(frozen=True)
class SparkSubmits:
    """A launcher of stages. Each stage is a spark-submit process, as on a cluster or under a scheduler."""

    submission: Submission

    def prepare(self, *, train: bool) -> None:
        """Checks the profile. No process is started before its stage."""
        self.submission.require_profile(submits=True)
        require_java()

    def run(self, stage: Stage, interruptions: Interruptions, tick: Callable[[float], None]) -> Outcome:
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
        return Outcome(stage, code, time.monotonic() - start, JobSummary.in_log(stage.log))

    def close(self) -> None:
        """Does nothing, because no process outlives its stage."""
