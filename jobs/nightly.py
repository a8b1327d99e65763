"""One night: the stages of one run date, each a spark-submit of its own, in order, until one fails."""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

from conf import storage
from conf.errors import EXIT_OK, ConfigError, NightrankError
from conf.lake import Lake
from conf.load import load_config, parse_date
from conf.types import Config
from jobs.night.highlights import remark
from jobs.night.plan import Night, Step
from jobs.night.submit import Interruptions, Outcome, Stage, StageError, Submission, run_stage
from jobs.night.terminal import Progress
from jobs.runner import Job, Result, closing_line, parser

DESCRIPTION = (
    "Runs the stages of one night as spark-submit processes: build_features, build_candidates, score_daily, "
    "measure_recommendations of the day before, report; deliver_recommendations behind score_daily where the config names "
    "sinks; with --retrain also train_model, train_retriever where candidates are retrieved, and evaluate_model. "
    "Stops at the first failure with that stage's exit code. Each stage's output goes to "
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
    if not storage.is_local(lake.logs):
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
    outcomes = []
    for stage in stages:
        outcome = run_stage(stage, submission, interruptions, partial(progress.tick, stage.name))
        if outcome.exit_code != EXIT_OK:
            progress.finished(stage.name, "FAILED", outcome.seconds, f"exit code {outcome.exit_code}")
            raise StageError(outcome)
        progress.finished(stage.name, "done", outcome.seconds, remark(outcome.closing))
        outcomes.append(outcome)
    return outcomes


def run_night(
    night: Night, submission: Submission, interruptions: Interruptions, progress: Progress
) -> list[Outcome]:
    """Announces a night and runs its stages; raises as run_stages does."""
    progress.say(f"Night of {night.run_date}{', retraining' if night.retrain else ''}  ({submission.config})")
    outcomes = run_stages(stages(night, night.preparing()), submission, interruptions, progress)
    outcomes += run_stages(stages(night, night.serving()), submission, interruptions, progress)
    progress.say(f"  {len(outcomes)} stages in {sum(each.seconds for each in outcomes):.1f} s")
    return outcomes


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
        if arguments.retrain:
            _check_model(config)
        night = Night(config, parse_date(arguments.run_date), arguments.retrain)
        log_path(
            night.lake, night.run_date, "nightly"
        )  # a lake that cannot hold logs is refused before it is read
        submission = Submission(arguments.profile, arguments.config, tuple(arguments.overrides))
        with Interruptions() as interruptions:
            outcomes = run_night(night, submission, interruptions, progress)
    except NightrankError as error:
        return fail(error, "nightly")
    closings = {outcome.stage.name: outcome.closing for outcome in outcomes}
    features, report = closings["build_features"], closings["report"]
    result = Result(
        output=str(report.get("output", night.lake.report(night.run_date))),
        rows_in=features.get("rows_in", 0),
        rows_out=closings.get("score_daily", closings.get("score_rows", {})).get("rows_out", 0),
        dropped=features.get("dropped", {}),
        facts={"retrain": night.retrain, "stages": list(closings)},
    )
    seconds = {outcome.stage.name: round(outcome.seconds, 2) for outcome in outcomes}
    job = Job("nightly", config, night.run_date, seconds)
    progress.say(closing_line(job, result, time.monotonic() - start))
    return EXIT_OK


def _check_model(config: Config) -> None:
    """Raises ConfigError for a wrong model before the night begins: train_model would find it hours later."""
    from training.models import complete  # torch: seconds that a night without training need not spend

    complete(config.model)
    if config.candidates.retrieval is not None:
        complete(config.candidates.retrieval.model)


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
