"""The stages of a run in the process of the tests, which has imported most of what the stages need."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path

from conf.load import load_config
from jobs.chain.launchers import Interruptions, Stage, StageOutcome, Submission
from jobs.chain.run_chain import StageRunner, run_chain
from jobs.chain.steps import RunPlan
from jobs.command_line import add_wait, job_parser
from jobs.runner import OwnSession, run_in_application
from reporting.terminal import StageProgress
from storage.job_summary import JobSummary
from tests.processes import ROOT


@dataclass(frozen=True)
class InThisProcess:
    """A launcher of stages that starts no process."""

    submission: Submission

    def prepare(self, *, train: bool) -> None:
        """Starts nothing."""

    def run(self, stage: Stage, _: Interruptions, tick: Callable[[float], None]) -> StageOutcome:
        """Runs a stage. Its log has what the stage prints."""
        parser = job_parser(stage.job, "")
        add_wait(parser)
        arguments = parser.parse_args(self.submission.arguments(stage))
        root, started = logging.getLogger(), time.time()
        handlers, level = root.handlers[:], root.level
        with redirect_stdout(StringIO()) as printed, redirect_stderr(printed):
            try:
                run = import_module(f"jobs.{stage.job}").run
                code = run_in_application(stage.job, arguments, run, print, OwnSession())
            finally:
                root.handlers = handlers
                root.setLevel(level)
        with stage.open_log() as log:
            log.write(printed.getvalue().encode())
        seconds = time.time() - started
        return StageOutcome(stage, code, started, seconds, JobSummary.in_log(stage.log))

    def close(self) -> None:
        """Ends nothing."""


def run_retraining(config: Path, run_date: str, *overrides: str) -> None:
    """Runs all stages of `nightly --retrain`. Raises StageError if one fails."""
    profile, variables = str(ROOT / "conf/spark/local.conf"), dict(os.environ)
    launcher = InThisProcess(Submission(profile, str(config), overrides))
    plan = RunPlan(load_config(str(config), overrides), run_date, retrain=True)
    try:
        with Interruptions() as interruptions:
            run_chain(plan, StageRunner(launcher, interruptions, StageProgress()))
    finally:
        os.environ.clear()  # MLflow's client sets variables for later jobs of its process
        os.environ.update(variables)
