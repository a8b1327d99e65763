"""The command line of shop-example, which needs no configuration and no Spark session."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from conf.errors import EXIT_OK, NightrankError
from conf.messages import program_name
from jobs.command_line import report_failure

DESCRIPTION = (
    "Writes the export of an invented web shop for the example of docs/tutorial.md: a CSV file of events "
    "for each day, and tables of users and items. The days begin on "
    "2026-01-01. If you call it again with more days, only the files of the new days are written."
)


def main(argv: list[str] | None = None) -> int:
    """Writes the files, and prints the job summary. Returns the exit code."""
    arguments = _parser().parse_args(argv)
    # Importing NumPy takes time, and `--help` does not need it.
    from etl.synthetic.shop import write_shop

    try:
        dates = write_shop(Path(arguments.folder), arguments.days, arguments.users, arguments.seed)
    except NightrankError as error:
        return report_failure("shop_example failed", error)
    summary = {
        "job": "shop_example",
        "output": arguments.folder,
        "first_day": dates[0],
        "last_day": dates[-1],
    }
    print(json.dumps(summary))
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=program_name("shop_example.py"),
        description=DESCRIPTION,
        epilog="Exit codes: 0 done, 2 an argument is wrong.",
    )
    parser.add_argument("folder", metavar="FOLDER", help="the folder of the files")
    parser.add_argument(
        "--days", type=int, default=8, metavar="N", help="number of days (default: %(default)s)"
    )
    parser.add_argument(
        "--users", type=int, default=200, metavar="N", help="number of users (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of the random numbers (default: %(default)s)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
