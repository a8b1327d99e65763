"""Shows the published list of one user."""

from __future__ import annotations

import argparse
import sys

from jobs.command_line import job_parser, run_without_session
from reporting.inspect.user_list import decoded_names, find, page
from storage.job_summary import JobSummary
from storage.run_context import RunContext

DESCRIPTION = (
    "Shows the published list of one user: position, item, score, reason (ranked, boost:<value> or "
    "explore) and the number of the user's earlier clicks on the item. Also shows the features of the user "
    "and of the items (ids as raw values), the versions of the model and the workflow that made the list, "
    "the time when the list was made, and the user's clicks in the newest rows of the dataset (at most about "
    "five million rows). "
    "Ends with exit code 3 if the date has no lists, the user is unknown, or the user had "
    "no candidates."
)

_REPORTED = ("model_version", "workflow_version", "scored_at")


def run(context: RunContext, user: str) -> tuple[str, JobSummary]:
    """Finds the published list of a user, and replaces the ids in the user's features with raw values.

    Returns:
        The list as text for a terminal, and the summary.

    Raises:
        DataError: the date has no lists, or the user has none.
    """
    with context.phase("find"):
        user_list = find(context.lake, context.run_date, user, context.config.negatives)
    with context.phase("decode"):
        names = decoded_names(context.lake, user_list)
    facts = {
        "user": user_list.user,
        **{name: user_list.facts[name] for name in _REPORTED},
        "refit_of": user_list.facts.get("refit_of"),
        "list": user_list.entries,
    }
    path = context.lake.recommendations.partition(context.run_date).path
    return page(user_list, names), JobSummary(path, rows_out=len(user_list.entries), facts=facts)


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
