"""Runs all stages of one run date; with --check-node, first the checks of this machine.

The checks (setup/doctor) run in a separate process, because they import packages that nightly does not need.
In addition, jobs must not import the package `setup`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from conf.errors import EXIT_OK, ConfigError, InfrastructureError, NightrankError
from jobs.chain.launchers import Interruptions, Submission, add_isolate, add_job_profile, launcher_of
from jobs.command_line import add_wait, job_parser, report_failure
from reporting.terminal import StageProgress
from spark.profile import DEFAULT_PROFILE

DESCRIPTION = (
    "Runs the stages of one run date in order: build_features, "
    "build_candidates, score_daily, deliver_recommendations (if deliver.sinks is not empty), "
    "measure_recommendations (if there are lists whose clicks have arrived) and report. If the "
    "configuration has no section keys, score_rows runs instead of build_candidates and score_daily. "
    "With --retrain, train_model, train_retriever (if the source retrieval has a model of its own) and "
    "evaluate_model run after build_features; with train.refit, refit_model follows. With score.blend: "
    "auto, learn_blend runs before build_candidates if the champion has no blend. If a stage fails, "
    "nightly still writes the report, and "
    "ends with the exit code of that stage. The output of each stage is written to "
    "<lake>/logs/dt=<run date>/<stage>.log. If the Spark profile has a local master, all stages run in one "
    "Spark application; otherwise, or with --isolate, each stage is a separate spark-submit process."
)

_ROOT = Path(__file__).resolve().parents[1]
_MODULE, _TO_CORRECT = "setup.doctor", 1


def check_node(submission: Submission) -> None:
    """Prints the results of the checks of this machine, the profiles and the lake.

    Raises:
        ConfigError: the checks are not installed here, or do not accept the arguments.
        InfrastructureError: a check failed. The printed results say what to correct.
    """
    if not (_ROOT / "setup/doctor").is_dir():
        raise ConfigError(
            f"--check-node: {_ROOT} has no folder setup/doctor",
            "run the job from a checkout, from the archive of `make dist` or in the image",
        )
    options = ["--config", submission.config]
    for override in submission.overrides:
        options += ["--set", override]
    # With this path, Python finds the module from any current folder.
    paths = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths}
    for profile in submission.all_properties:
        command = [sys.executable, "-m", _MODULE, "--profile", profile, *options]
        done = subprocess.run(command, stdout=sys.stderr, check=False, env=environment)
        if done.returncode == _TO_CORRECT:
            raise InfrastructureError(
                f"this machine cannot run the jobs of {profile}",
                "make the corrections in the lines with FIX, or run without --check-node",
            )
        if done.returncode:
            raise ConfigError(
                f"--check-node: the checks ended with exit code {done.returncode}",
                "correct what they printed",
            )


def main(argv: list[str] | None = None) -> int:
    """Starts the application, runs all stages, prints the job summary, and returns the exit code."""
    arguments = _parser().parse_args(argv)
    start = time.monotonic()
    overrides = tuple(arguments.overrides)
    submission = Submission(
        arguments.profile,
        arguments.config,
        overrides,
        arguments.future,
        arguments.wait,
        dict(arguments.job_profiles),
    )
    try:
        launcher = launcher_of(submission, isolate=arguments.isolate)
        if arguments.check_node:
            check_node(submission)
        with Interruptions() as interruptions, closing(launcher):
            launcher.prepare(train=arguments.retrain)
            # These imports take half a second. The application starts during this time.
            from jobs.chain.run_chain import run_night

            summary = run_night(arguments, launcher, interruptions)
    except NightrankError as error:
        return report_failure("nightly failed", error)
    except OSError as error:  # only the disk raises an OSError; the network and the lake raise other errors
        return report_failure("nightly failed", error, "check the disk and its free space, then try again")
    total = time.monotonic() - start
    StageProgress().write(summary.completed("nightly", arguments.run_date, summary.seconds, total).line())
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line: the options of every job, the Spark profile, --retrain."""
    parser = job_parser("nightly", DESCRIPTION)
    parser.add_argument(
        "--profile",
        default=DEFAULT_PROFILE,
        metavar="CONF",
        help="Spark properties file (default: %(default)s)",
    )
    add_job_profile(parser)
    parser.add_argument(
        "--retrain",
        action="store_true",
        help="also train a new model (the challenger); the gate decides whether it replaces the champion",
    )
    parser.add_argument(
        "--check-node",
        action="store_true",
        help="first check whether this machine can run the jobs of the profile and use the lake "
        "(python -m setup.doctor); if not, end with exit code 4",
    )
    add_wait(parser)
    add_isolate(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
