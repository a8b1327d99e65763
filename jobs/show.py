"""The command line of show, which needs no Spark session."""

from __future__ import annotations

import argparse
import sys

from jobs.command_line import job_parser, run_without_session
from jobs.stages.show import run

DESCRIPTION = (
    "Shows the published list of one user: position, item, score (the model's probability), reason "
    "(ranked, boost:<value> or explore) and how often the user clicked the item before; the features of "
    "user and items, ids as the values they stand for; which model and workflow made it and when; and the "
    "user's clicks in the log's window (of at most five million rows). Ends with 3 where the date has no "
    "lists, the user is unknown or had no candidates, and says which."
)


def main(argv: list[str] | None = None) -> int:
    """Prints the list and the job summary, and returns the exit code."""
    arguments = _parser().parse_args(argv)
    return run_without_session("show", arguments, lambda context: run(context, arguments.user))


def _parser() -> argparse.ArgumentParser:
    """The options of every job, and the user."""
    parser = job_parser("show", DESCRIPTION, date_option="--date")
    parser.add_argument("--user", required=True, metavar="ID", help="the user's id, as in the log")
    return parser


if __name__ == "__main__":
    sys.exit(main())
