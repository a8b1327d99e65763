"""Runs the stages of one run date in order, until one fails."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from conf.counted import counted
from conf.errors import EXIT_CRASHED, EXIT_OK, ConfigError, NightrankError
from jobs.chain.stage_remarks import remark
from jobs.chain.steps import RunPlan, Step
from jobs.chain.submit import Interruptions, Launcher, Outcome, Stage, StageError
from reporting.monitoring.run_observer import Observer
from reporting.terminal.stage_progress import StageProgress
from storage import file_io
from storage.job_summary import JobSummary
from storage.paths import Lake


@dataclass
class StageRunner:
    """A runner of stages, which writes one progress line per stage.

    Attributes:
        outcomes: the outcomes of the stages that this runner has run, including a stage that failed.
    """

    launcher: Launcher
    interruptions: Interruptions
    progress: StageProgress
    outcomes: list[Outcome] = field(default_factory=list)

    def run(self, stages: Sequence[Stage]) -> None:
        """Runs stages in order.

        Raises:
            StageError: a stage ended with an exit code other than 0; later stages were not started.
            StoppedError: a signal arrived.
        """
        for stage in stages:
            tick = partial(self.progress.tick, stage.name)
            outcome = self.launcher.run(stage, self.interruptions, tick)
            self.outcomes.append(outcome)
            if outcome.exit_code != EXIT_OK:
                code = f"exit code {outcome.exit_code}"
                self.progress.finished(stage.name, "FAILED", outcome.seconds, code)
                raise StageError(outcome)
            self.progress.finished(stage.name, "done", outcome.seconds, remark(outcome.summary))


def run_chain(plan: RunPlan, runner: StageRunner) -> list[Outcome]:
    """Prints the first line of a run, runs its stages, and writes its run record.

    If a stage fails, the report is still written: it shows which stages have run.

    Args:
        plan: the plan that chooses the stages.
        runner: the runner of the stages. It must not have run any stage before.

    Returns:
        The outcome of each stage.

    Raises:
        StageError: a stage ended with an exit code other than 0.
        StoppedError: a signal arrived.
    """
    retraining = ", retraining" if plan.retrain else ""
    runner.progress.write(f"Run of {plan.run_date}{retraining}  ({runner.launcher.submission.config})")
    first_stages = stages_of(plan, plan.steps_before_gate())
    observer = Observer.begin("nightly", plan.config, plan.run_date, waits=True)
    plan = replace(plan, recorder=observer.run)
    exit_code, failure = EXIT_CRASHED, None
    try:
        try:
            runner.run(first_stages)
            runner.run(stages_of(plan, plan.steps_after_gate()))
        except StageError as error:
            failed = error.outcome
            observer.record_silent(failed.stage.job, failed.stage.run_date, failed.seconds, error)
            if error.outcome.stage.job != "report":
                with suppress(StageError):  # the error of the stage is raised, not that of the report
                    runner.run(stages_of(plan, [plan.report_step()]))
            raise
        exit_code = EXIT_OK
    except NightrankError as error:
        exit_code, failure = error.exit_code, error
        raise
    finally:
        summary = summarize(plan, runner.outcomes)
        observer.end(exit_code, summary.seconds, summary, failure)
    seconds = sum(outcome.seconds for outcome in runner.outcomes)
    runner.progress.write(f"  {counted(len(runner.outcomes), 'stage')} in {seconds:.1f} s")
    return runner.outcomes


def summarize(plan: RunPlan, outcomes: Sequence[Outcome]) -> JobSummary:
    """Returns the job summary of a run, made from those of its stages. `seconds` has one entry per stage."""
    nothing = JobSummary(None)
    summaries = {outcome.stage.name: outcome.summary or nothing for outcome in outcomes}
    features = summaries.get("build_features", nothing)
    scores = summaries.get("score_daily") or summaries.get("score_rows", nothing)
    return JobSummary(
        summaries.get("report", nothing).output or plan.lake.report(plan.run_date),
        rows_in=features.rows_in or 0,
        rows_out=scores.rows_out or 0,
        dropped=features.dropped or {},
        facts={
            "retrain": plan.retrain,
            "stages": list(summaries),
            "exit_codes": {outcome.stage.name: outcome.exit_code for outcome in outcomes},
        },
        job="nightly",
        run_date=plan.run_date,
        seconds={outcome.stage.name: round(outcome.seconds, 2) for outcome in outcomes},
    )


def stages_of(plan: RunPlan, steps: Sequence[Step]) -> list[Stage]:
    """Converts the steps of a run to stages. A stage also has the path of its log."""
    return [
        Stage(step.job, step.run_date, log_path(plan.lake, plan.run_date, step.name), step.overrides)
        for step in steps
    ]


def log_path(lake: Lake, run_date: str, stage: str) -> Path:
    """Returns the path of a stage's log: `<lake>/logs/dt=<run date>/<stage>.log`.

    Raises:
        ConfigError: the lake is not on this machine.
    """
    if not file_io.is_local(lake.logs):
        raise ConfigError(
            f"lake={lake.root} is not a local folder, but nightly writes the logs of its stages to it",
            "run the jobs from a scheduler that keeps logs, or set lake to a local or mounted folder",
        )
    return Path(lake.logs.removeprefix("file://")) / f"dt={run_date}" / f"{stage}.log"
