"""The command line of the demo."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path

from conf.errors import EXIT_OK, NightrankError
from conf.messages import program_name
from jobs.chain.application import add_isolate, launcher_of
from jobs.chain.demo import run_demo
from jobs.chain.submit import JOBS, Interruptions, Submission
from jobs.command_line import add_future, report_failure
from reporting.terminal import StageProgress
from spark.profile import DEFAULT_PROFILE

DESCRIPTION = (
    "Generates a click log, runs all stages with retraining for a few run dates, compares the last "
    "lists with the generated clicks of the next day, and prints the results."
)
EXIT_MISSED = 1
_DEFAULT_CONFIG = "conf/datasets/generated.yaml"


def main(argv: list[str] | None = None) -> int:
    """Runs the demo and returns its exit code."""
    arguments = _parser().parse_args(argv)
    overrides = (*arguments.overrides, f"lake={arguments.out}/lake")
    config = arguments.config or str(JOBS.parent / _DEFAULT_CONFIG)
    submission = Submission(arguments.profile, config, overrides, future=arguments.future)
    try:
        launcher = launcher_of(submission, isolate=arguments.isolate)
        with Interruptions() as interruptions, closing(launcher):
            missed = run_demo(launcher, Path(arguments.out), arguments.nights, interruptions, StageProgress())
    except NightrankError as error:
        return report_failure("demo failed", error)
    return EXIT_MISSED if missed and arguments.strict else EXIT_OK


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the demo's command line."""
    parser = argparse.ArgumentParser(
        prog=program_name("demo.py"),
        description=DESCRIPTION,
        epilog="Exit codes: 0 done, 1 a target was missed (with --strict), 2 bad configuration or "
        "arguments, otherwise the exit code of the stage that failed.",
    )
    parser.add_argument(
        "--config",
        metavar="YAML",
        help=f"configuration with a section generate (default: {_DEFAULT_CONFIG} of the project)",
    )
    parser.add_argument(
        "--nights", type=int, default=3, metavar="N", help="number of run dates (default: %(default)s)"
    )
    parser.add_argument(
        "--out",
        default="demo_out",
        metavar="FOLDER",
        help="folder for the lake, which is emptied first (default: %(default)s)",
    )
    parser.add_argument(
        "--profile",
        default=DEFAULT_PROFILE,
        metavar="CONF",
        help="Spark properties file (default: %(default)s)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="a.b=value",
        dest="overrides",
        help="override one key of the configuration; may be given several times",
    )
    add_future(parser)
    add_isolate(parser)
    parser.add_argument("--strict", action="store_true", help="end with exit code 1 if a target is missed")
    return parser


if __name__ == "__main__":
    sys.exit(main())
