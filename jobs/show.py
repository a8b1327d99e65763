"""One user's list of a date: features, scores, reasons, model and workflow, and what the user clicked. Needs no Spark session."""

from __future__ import annotations

import argparse
import sys
import time

from conf.errors import EXIT_INFRASTRUCTURE, EXIT_OK, NightrankError
from conf.load import load_config, parse_date
from conf.printable import printable
from jobs.runner import completed, parser
from reporting.inspect.user_list import find
from reporting.inspect.user_page import decoded_names, page
from storage.job_summary import JobSummary
from storage.run_context import RunContext

DESCRIPTION = (
    "Shows the published list of one user: position, item, score (the model's probability), reason (ranked, boost:<value> "
    "or explore) and how often the user clicked the item before; the features of user and items, ids as the values they "
    "stand for; which model and workflow made it and when; and the user's clicks in the log's window (of at most five "
    "million rows). Ends with 3 where the date has no lists, the user is unknown or had no candidates, and says which."
)


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    start = time.monotonic()
    try:
        config = load_config(arguments.config, arguments.overrides)
        context = RunContext("show", config, parse_date(arguments.run_date))
        with context.phase("find"):
            found = find(context.lake, context.run_date, arguments.user)
        with context.phase("decode"):
            names = decoded_names(context.lake, found)
    except NightrankError as error:
        print(f"show failed: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        remedy = "see that the lake can be reached; a retry may help"
        print(f"show failed: {printable(error)}\n  what to do: {remedy}", file=sys.stderr)
        return EXIT_INFRASTRUCTURE
    print(page(found, names))
    told = ("model_version", "workflow_version", "scored_at")
    facts = {"user": found.user, **{name: found.facts[name] for name in told}, "list": found.entries}
    result = JobSummary(
        context.lake.recommendations.partition(context.run_date).path,
        rows_out=len(found.entries),
        facts=facts,
    )
    print(completed(result, context, time.monotonic() - start).line())
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    made = parser("show", DESCRIPTION, date_option="--date")
    made.add_argument("--user", required=True, metavar="ID", help="the user's id, as in the log")
    return made


if __name__ == "__main__":
    sys.exit(main())
