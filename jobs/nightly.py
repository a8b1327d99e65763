"""One night: the stages of one run date, each a spark-submit of its own, in order, until one fails."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from conf.errors import EXIT_CRASHED, EXIT_OK, ConfigError, NightrankError
from conf.load import load_config, parse_date
from conf.printable import json_line
from jobs.chain.stage_remarks import remark
from jobs.chain.steps import Night, Step
from jobs.chain.submit import Interruptions, Outcome, Stage, StageError, Submission, run_stage
from jobs.checks import check_config, check_lists, check_sinks, check_tables, check_training
from jobs.runner import parser
from reporting.monitoring.observer import Observer
from reporting.terminal.progress import Progress
from storage import file_io
from storage.paths import Lake

DESCRIPTION = (
    "Runs the stages of one night as spark-submit processes: build_features, build_candidates, score_daily, "
    "measure_recommendations of the day before, report; deliver_recommendations behind score_daily where the config names "
    "sinks; with --retrain also train_model, train_retriever where candidates are retrieved, and evaluate_model. "
    "Stops at the first failure with that stage's exit code, after the report. Each stage's output goes to "
    "<lake>/logs/dt=<run date>/<stage>.log."
)
DEFAULT_PROFILE = "conf/spark/local.conf"


def stages(night: Night, steps: list[Step]) -> list[Stage]:
    """The steps of a night, each with the log it writes: <lake>/logs/dt=<run date>/<name>.log."""
    return [
        Stage(step.job, step.run_date, log_path(night.lake, night.run_date, step.name), step.overrides)
        for step in steps
    ]


def log_path(lake: Lake, run_date: str, stage: str) -> Path:
    """Where a stage's output goes.

    Raises:
        ConfigError: the lake is not on this machine.
    """
    if not file_io.is_local(lake.logs):
        raise ConfigError(
            f"lake={lake.root} is not a local folder, where nightly keeps the logs of its stages",
            "run the jobs from a scheduler that keeps logs, or set lake to a local or mounted folder",
        )
    return Path(lake.logs.removeprefix("file://")) / f"dt={run_date}" / f"{stage}.log"


def run_stages(
    stages: list[Stage], submission: Submission, interruptions: Interruptions, progress: Progress
) -> list[Outcome]:
    """Runs stages in order, one progress line each.

    Raises:
        StageError: a stage ended with another code than 0; later ones were not started.
        StoppedError: a signal arrived.
    """
    outcomes: list[Outcome] = []
    _run_into(outcomes, stages, submission, interruptions, progress)
    return outcomes


def _run_into(
    outcomes: list[Outcome],
    stages: list[Stage],
    submission: Submission,
    interruptions: Interruptions,
    progress: Progress,
) -> None:
    """Runs stages and adds how each ended, the one that failed too; raises as run_stages does."""
    for stage in stages:
        outcome = run_stage(stage, submission, interruptions, partial(progress.tick, stage.name))
        outcomes.append(outcome)
        if outcome.exit_code != EXIT_OK:
            progress.finished(stage.name, "FAILED", outcome.seconds, f"exit code {outcome.exit_code}")
            raise StageError(outcome)
        progress.finished(stage.name, "done", outcome.seconds, remark(outcome.closing))


def run_night(
    night: Night, submission: Submission, interruptions: Interruptions, progress: Progress
) -> list[Outcome]:
    """Announces a night, runs its stages and records it; raises as run_stages does.

    Where a stage failed, the report is still made, for whoever is called: its page tells how far the night came.
    """
    progress.say(f"Night of {night.run_date}{', retraining' if night.retrain else ''}  ({submission.config})")
    preparing = stages(night, night.preparing())
    observer = Observer.begin("nightly", night.config, night.run_date, waits=True)
    night = replace(night, recorder=observer.run)
    outcomes: list[Outcome] = []
    exit_code, failure = EXIT_CRASHED, None
    try:
        try:
            _run_into(outcomes, preparing, submission, interruptions, progress)
            _run_into(outcomes, stages(night, night.serving()), submission, interruptions, progress)
        except StageError as error:
            if error.outcome.stage.job != "report":
                _report_anyway(night, outcomes, submission, interruptions, progress)
            raise
        exit_code = EXIT_OK
    except NightrankError as error:
        exit_code, failure = error.exit_code, error
        raise
    finally:
        closing = closing_of(night, outcomes)
        observer.end(exit_code, closing.pop("seconds"), closing, failure)
    progress.say(f"  {len(outcomes)} stages in {sum(each.seconds for each in outcomes):.1f} s")
    return outcomes


def _report_anyway(
    night: Night,
    outcomes: list[Outcome],
    submission: Submission,
    interruptions: Interruptions,
    progress: Progress,
) -> None:
    """The report of a night that failed; its own failure is told in its line, and what stopped the night stays the news."""
    with suppress(StageError):
        _run_into(outcomes, stages(night, [night.report()]), submission, interruptions, progress)


def closing_of(night: Night, outcomes: list[Outcome]) -> dict[str, Any]:
    """What the closing line of a night says of the stages that ran; `seconds` by stage."""
    closings = {outcome.stage.name: outcome.closing for outcome in outcomes}
    features = closings.get("build_features", {})
    return {
        "job": "nightly",
        "run_date": night.run_date,
        "rows_in": features.get("rows_in", 0),
        "rows_out": closings.get("score_daily", closings.get("score_rows", {})).get("rows_out", 0),
        "dropped": features.get("dropped", {}),
        "seconds": {outcome.stage.name: round(outcome.seconds, 2) for outcome in outcomes},
        "output": closings.get("report", {}).get("output", night.lake.report(night.run_date)),
        "retrain": night.retrain,
        "stages": list(closings),
        "exit_codes": {outcome.stage.name: outcome.exit_code for outcome in outcomes},
    }


def fail(error: NightrankError, job: str) -> int:
    """Says on standard error why a job ends, and gives its exit code."""
    print(f"{job} failed: {error}", file=sys.stderr, flush=True)
    return error.exit_code


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    start = time.monotonic()
    progress = Progress()
    try:
        config = load_config(arguments.config, arguments.overrides)
        check_config(config)
        if arguments.retrain:
            check_training(config)
            check_lists(config)
        night = Night(config, parse_date(arguments.run_date), arguments.retrain)
        log_path(
            night.lake, night.run_date, "nightly"
        )  # a lake that cannot hold logs is refused before it is read
        submission = Submission(arguments.profile, arguments.config, tuple(arguments.overrides))
        check_tables(config, night.run_date)
        check_sinks(config, arguments.profile)
        with Interruptions() as interruptions:
            outcomes = run_night(night, submission, interruptions, progress)
    except NightrankError as error:
        return fail(error, "nightly")
    closing = closing_of(night, outcomes)
    closing["seconds"]["total"] = round(time.monotonic() - start, 2)
    progress.say(json_line(closing))
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    made = parser("nightly", DESCRIPTION)
    made.add_argument(
        "--profile",
        default=DEFAULT_PROFILE,
        metavar="CONF",
        help="Spark properties file (default: %(default)s)",
    )
    made.add_argument(
        "--retrain",
        action="store_true",
        help="train a challenger on a fitted or extended workflow and let the gate decide which model serves",
    )
    return made


if __name__ == "__main__":
    sys.exit(main())
