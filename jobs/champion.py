"""Shows which model serves on a date and why.

Before that, it applies a requested override (rollback, pin or release).
"""

from __future__ import annotations

import argparse
import getpass
import os
import sys

from conf.messages import printable_lines
from jobs.command_line import job_parser, run_without_session
from reporting.inspect.model_tables import describe_override, history_table
from storage.job_summary import JobSummary
from storage.run_context import RunContext
from training.registry.champion_history import Action, Override, champion_state_as_of
from training.registry.overrides import OverrideRequest, pin, release, roll_back
from training.registry.refits import serving_model

DESCRIPTION = (
    "Shows which model serves on a run date, since when and why. It also shows all decisions of the gate and "
    "all changes by people up to that date. --rollback withdraws the champion: from the run date on, the "
    "previous champion serves again. --pin lets one version serve until --release, regardless of the gate's "
    "decisions. The history records who made each change and why. A repeated change has no effect. Lists "
    "that are already published do not change: run nightly for the date again."
)


def run(context: RunContext, action: Action | None, request: OverrideRequest) -> tuple[str, JobSummary]:
    """Applies the override if `action` is not None, and shows which model serves.

    Returns:
        The history as text for a terminal, and the summary.

    Raises:
        ConfigError, DataError: the override is not allowed.
    """
    lake, name = context.lake, context.config.name
    override = _apply(context, action, request)
    serving = serving_model(context.config, lake, context.run_date)
    refit = serving.refit if serving else None
    text = printable_lines(history_table(lake, name, context.run_date, refit))
    if action is not None:
        text = f"{text}\n{printable_lines(describe_override(override))}"
    champion_state = champion_state_as_of(lake, name, context.run_date)
    facts = {
        "champion": champion_state.champion,
        "pinned": champion_state.pinned is not None,
        "withdrawn": sorted(champion_state.withdrawn),
        "changed": override is not None,
        "refit": refit,
    }
    return text, JobSummary(lake.models(name), facts=facts)


def _apply(context: RunContext, action: Action | None, request: OverrideRequest) -> Override | None:
    """Records the override and returns it; None if `action` is None, or if the override has no effect."""
    if action is None:
        return None
    record = {"rollback": roll_back, "pin": pin, "release": release}[action]
    return record(context.lake, context.config.name, request)


def main(argv: list[str] | None = None) -> int:
    """Applies the requested override, if any, and prints the history and the job summary.

    Returns the exit code.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.to and not arguments.rollback:
        parser.error("--to can be given only with --rollback")

    def apply(context: RunContext) -> tuple[str, JobSummary]:
        version = arguments.to if arguments.rollback else arguments.pin
        request = OverrideRequest(context.run_date, arguments.by, arguments.why, version)
        return run(context, _action(arguments), request)

    return run_without_session("champion", arguments, apply)


def _action(arguments: argparse.Namespace) -> Action | None:
    """Returns the override that the options request, or None if they request none."""
    if arguments.rollback:
        return "rollback"
    if arguments.pin is not None:
        return "pin"
    return "release" if arguments.release else None


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line: options of every job, and the override's author and reason."""
    parser = job_parser("champion", DESCRIPTION)
    override = parser.add_mutually_exclusive_group()
    override.add_argument(
        "--rollback", action="store_true", help="withdraw the champion: the previous champion serves again"
    )
    override.add_argument(
        "--pin",
        metavar="VERSION",
        help="let this version serve until --release, regardless of the gate's decisions",
    )
    override.add_argument("--release", action="store_true", help="end the pin: the gate decides again")
    parser.add_argument(
        "--to",
        metavar="VERSION",
        help="with --rollback: go back to this version, and withdraw all champions after it",
    )
    parser.add_argument(
        "--why",
        default="",
        metavar="TEXT",
        help="reason for the change, for the history; required for a change",
    )
    parser.add_argument(
        "--by",
        default=_user(),
        metavar="NAME",
        help="who made the change (default: the user of this process)",
    )
    return parser


def _user() -> str:
    """Returns the name of this process's user, or the user id if it has no name, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


if __name__ == "__main__":
    sys.exit(main())
