"""The command line of show, which needs no Spark session."""

from __future__ import annotations

import argparse
import sys

from jobs.command_line import job_parser, run_without_session
from jobs.stages.show import run

DESCRIPTION = (
    "Shows the published list of one user: position, item, score, reason (ranked, boost:<value> or "
    "explore) and the number of the user's earlier clicks on the item. Also shows the features of the user "
    "and of the items (ids as raw values), the versions of the model and the workflow that made the list, "
    "its time, and the user's clicks in the newest rows of the dataset (at most about five million rows). "
    "Ends with exit code 3 if the date has no lists, the user is unknown, or the user had "
    "no candidates."
)


def main(argv: list[str] | None = None) -> int:
    """Prints the list of a user and the job summary, and returns the exit code."""
    arguments = _parser().parse_args(argv)
    return run_without_session(
        "show",
        arguments,
        lambda context: run(context, arguments.user),
        with_summary=arguments.json or not sys.stdout.isatty(),
    )


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line: the options of every job, and the user."""
    output = "On a terminal, only the table is printed; otherwise the last line is one JSON object."
    parser = job_parser("show", DESCRIPTION, date_option="--date", output=output)
    parser.add_argument("--user", required=True, metavar="ID", help="the user's id, as in the log")
    parser.add_argument(
        "--json",
        action="store_true",
        help="also print the list as one JSON object on the last line, which is the default if standard "
        "output is not a terminal",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
