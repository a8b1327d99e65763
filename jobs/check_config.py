"""The command line of check_config, which needs no Spark session."""

from __future__ import annotations

import sys

from jobs.command_line import job_parser, run_without_session
from jobs.stages.check_log import run

DESCRIPTION = (
    "Checks in seconds what a run would refuse after minutes: every key of the configuration, the models and "
    "operators, the tables, and the first rows of the log's files of all days that a run of the date reads. "
    "It prints the rows that would be quarantined, with the remedy. It writes nothing."
)


def main(argv: list[str] | None = None) -> int:
    """Checks a configuration, and prints the content of its files and the job summary.

    Returns the exit code.
    """
    arguments = job_parser("check_config", DESCRIPTION).parse_args(argv)
    return run_without_session("check_config", arguments, run)


if __name__ == "__main__":
    sys.exit(main())
