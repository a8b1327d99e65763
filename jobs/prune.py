"""The command line of the stage prune."""

from __future__ import annotations

import argparse
import sys

from jobs.command_line import job_parser
from jobs.runner import run_with_options
from jobs.stages.prune import run
from storage.job_summary import JobSummary
from storage.run_context import RunContext

DESCRIPTION = (
    "With --delete, deletes old dates and unused versions from the lake. Without this option, prints what "
    "it would delete, and changes nothing. It keeps the dates of the last --keep-days days up "
    "to the run date, later dates, and all other data that a run of the run date or of a later date "
    "needs: the "
    "newest date of each table, the features of kept datasets, and the models that serve or may serve again. "
    "The raw log is never changed. Other jobs of the run date may run at the same time. If the job is "
    "interrupted, "
    "start it again: it continues."
)


def prune(context: RunContext, arguments: argparse.Namespace) -> JobSummary:
    """Deletes or lists old dates and unused versions, prints a table, and returns the summary."""
    text, summary = run(context, arguments.keep_days, dry_run=not arguments.delete)
    print(text, flush=True)
    return summary


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line: the options of every job, --keep-days and --delete."""
    parser = job_parser("prune", DESCRIPTION)
    parser.add_argument(
        "--keep-days",
        type=int,
        required=True,
        metavar="N",
        help="number of days to keep: the run date and the days before it; at least as many as a run reads",
    )
    parser.add_argument(
        "--delete",
        action="store_true",
        help="delete what the job prints; without this option, nothing is changed",
    )
    return parser


if __name__ == "__main__":
    run_with_options("prune", _parser(), prune, sys.argv[1:])
