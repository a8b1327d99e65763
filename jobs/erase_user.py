"""The command line of the stage erase_user."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from conf.errors import ConfigError
from jobs.command_line import job_parser
from jobs.runner import run_with_options
from jobs.stages.erase_user import list_records, run
from storage.job_summary import JobSummary
from storage.run_context import RunContext

DESCRIPTION = (
    "Erases users from the lake and from the sinks: their rows in all tables, their ids in vocabularies, and "
    "old data files. From then on, jobs leave out the rows of these users when they read the raw log of the "
    "run date, of earlier days, or of days that the lake has already read. The raw log and trained models "
    "are not changed; the record in <lake>/erasures says what remains. No other job may use the lake at "
    "the same time. If the job is interrupted, start it again with the same options: it continues."
)


def erase(context: RunContext, arguments: argparse.Namespace) -> JobSummary:
    """Erases the users of the command line or lists the records, prints a text, and returns the summary."""
    if arguments.list:
        text, summary = list_records(context.lake)
    else:
        users = _ids(arguments.user, arguments.users_file)
        text, summary = run(context, users, dry_run=arguments.dry_run)
    print(text, flush=True)
    return summary


def _ids(named: list[str], file: Path | None) -> list[str]:
    """Returns the distinct ids of --user and of the lines of --users-file.

    Raises:
        ConfigError: there is no id, or the file cannot be read.
    """
    lines: list[str] = []
    if file is not None:
        try:
            # Only line feeds end a line. Ids may contain other line separators, such as U+2028.
            text = file.read_bytes().decode("utf-8-sig")
            lines = [line.removesuffix("\r") for line in text.split("\n")]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"--users-file {file} cannot be read: {error}", "pass a text file in UTF-8 with one id a line"
            ) from error
    ids = list(dict.fromkeys([*named, *(line for line in lines if line)]))
    if not ids:
        raise ConfigError("no user is named", "pass --user or --users-file, or --list for the records")
    return ids


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line: the options of every job, and the users."""
    parser = job_parser("erase_user", DESCRIPTION)
    parser.add_argument(
        "--user",
        nargs="+",
        default=[],
        metavar="ID",
        help="ids of the users, as they are in the log; use --user=ID for an id that begins with a dash",
    )
    parser.add_argument("--users-file", type=Path, metavar="FILE", help="text file with one id per line")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be removed; nothing is changed"
    )
    parser.add_argument(
        "--list", action="store_true", help="print the records of erasures, without erasing users"
    )
    return parser


if __name__ == "__main__":
    run_with_options("erase_user", _parser(), erase, sys.argv[1:])
