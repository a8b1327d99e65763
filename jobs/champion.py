"""Which model serves since when and why; takes a bad champion out, or pins one. Needs no Spark session."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
import time

from conf.errors import EXIT_INFRASTRUCTURE, EXIT_OK, NightrankError
from conf.load import load_config, parse_date
from conf.printable import printable, printable_lines
from jobs.runner import completed, parser
from reporting.inspect.champion_log import history_table, told
from storage.job_summary import JobSummary
from storage.run_context import RunContext
from training.registry.champion_history import Override, champion_state_as_of
from training.registry.overrides import OverrideRequest, pin, release, roll_back

DESCRIPTION = (
    "Shows which model serves on a run date, since when and why: every decision of the gate and of people up to that date. "
    "--rollback takes the champion out, so that an earlier one serves from that run date on; --pin makes one version serve "
    "whatever the gate says, until --release. Each is kept with who and why; done again, it changes nothing. Lists that are "
    "published already stay: run nightly for the date again."
)


def main(argv: list[str] | None = None) -> int:
    made = _parser()
    arguments = made.parse_args(argv)
    if arguments.to and not arguments.rollback:
        made.error("--to belongs to --rollback")
    start = time.monotonic()
    try:
        config = load_config(arguments.config, arguments.overrides)
        context = RunContext("champion", config, parse_date(arguments.run_date))
        asked = arguments.rollback or arguments.pin is not None or arguments.release
        done = _act(context, arguments)
        print(printable_lines(history_table(context.lake, config.name, context.run_date)))
        if asked:
            print(printable_lines(told(done)))
    except NightrankError as error:
        print(f"champion failed: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        remedy = "see that the lake can be reached; a retry may help"
        print(f"champion failed: {printable(error)}\n  what to do: {remedy}", file=sys.stderr)
        return EXIT_INFRASTRUCTURE
    standing = champion_state_as_of(context.lake, config.name, context.run_date)
    facts = {
        "champion": standing.champion,
        "pinned": standing.pinned is not None,
        "withdrawn": sorted(standing.withdrawn),
        "changed": done is not None,
    }
    summary = JobSummary(context.lake.models(config.name), facts=facts)
    print(completed(summary, context, time.monotonic() - start).line())
    return EXIT_OK


def _act(context: RunContext, arguments: argparse.Namespace) -> Override | None:
    """Does what was asked for; None where that was nothing, or nothing new."""
    version = arguments.to if arguments.rollback else arguments.pin
    request = OverrideRequest(context.run_date, arguments.by, arguments.why, version)
    if arguments.rollback:
        return roll_back(context.lake, context.config.name, request)
    if arguments.pin is not None:
        return pin(context.lake, context.config.name, request)
    return release(context.lake, context.config.name, request) if arguments.release else None


def _parser() -> argparse.ArgumentParser:
    made = parser("champion", DESCRIPTION)
    action = made.add_mutually_exclusive_group()
    action.add_argument(
        "--rollback", action="store_true", help="withdraw the champion: the one before it serves again"
    )
    action.add_argument(
        "--pin", metavar="VERSION", help="let this version serve whatever the gate says, until --release"
    )
    action.add_argument("--release", action="store_true", help="end the pin: the gate decides again")
    made.add_argument(
        "--to",
        metavar="VERSION",
        help="with --rollback: go back to this version, and withdraw every champion since",
    )
    made.add_argument(
        "--why", default="", metavar="TEXT", help="the reason, for the history; needed for a change"
    )
    made.add_argument(
        "--by",
        default=_user(),
        metavar="NAME",
        help="who decided (default: the user of this process)",
    )
    return made


def _user() -> str:
    """Who runs this process; a number where its user has no name, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


if __name__ == "__main__":
    sys.exit(main())
