"""Command-line functions that jobs share: options, error output, and running jobs without a Spark session."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from conf.errors import EXIT_INFRASTRUCTURE, EXIT_OK, NightrankError
from conf.messages import printable, program_name
from storage.job_summary import JobSummary

if TYPE_CHECKING:  # nightly uses this module before it imports the package `conf.types`
    from storage.run_context import RunContext

INTERRUPTED = 128 + signal.SIGINT  # the exit code after Ctrl-C, as in shells and nightly


_ALWAYS_JSON = "The last line on standard output is one JSON object."


def job_parser(
    name: str, description: str, date_option: str = "--run-date", output: str = _ALWAYS_JSON
) -> argparse.ArgumentParser:
    """Returns a parser with the options that every job has.

    Args:
        name: the name of the job, such as `build_features`.
        description: what the job does, for --help.
        date_option: a second name of --run-date, such as `--date`.
        output: what the job writes to standard output last.
    """
    parser = argparse.ArgumentParser(
        prog=program_name(f"{name}.py"),
        description=description,
        epilog="Exit codes: 0 done, 2 bad configuration or arguments, 3 bad data, 4 infrastructure "
        f"(worth a retry). {output}",
    )
    parser.add_argument(
        "--config",
        required=True,
        metavar="YAML",
        help="configuration file, e.g. conf/datasets/generated.yaml",
    )
    parser.add_argument(
        *dict.fromkeys([date_option, "--run-date"]),
        required=True,
        dest="run_date",
        metavar="YYYY-MM-DD",
        help="run date: the day whose raw log the run processes",
    )
    add_future(parser)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="a.b=value",
        dest="overrides",
        help="override one key of the configuration; may be given several times",
    )
    return parser


def add_future(parser: argparse.ArgumentParser) -> None:
    """Adds the option --future, which allows run dates later than tomorrow."""
    parser.add_argument(
        "--future",
        action="store_true",
        help="accept a run date later than tomorrow (UTC), such as a date of a generated log; without this "
        "option, a later date is an error",
    )


def add_wait(parser: argparse.ArgumentParser) -> None:
    """Adds the option --wait: how long a job waits for another process that runs it for the same date."""
    parser.add_argument(
        "--wait",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="how long to wait if another process runs this job for the same lake, configuration and run "
        "date (default: 0); if the process still runs after this time, the job ends with exit code 4",
    )


def _seconds(text: str) -> float:
    """Parses a number of seconds, which must not be negative."""
    if not 0 <= (value := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return value


def run_without_session(
    name: str,
    arguments: argparse.Namespace,
    stage: Callable[[RunContext], tuple[str, JobSummary]],
    *,
    with_summary: bool = True,
) -> int:
    """Runs a job that only shows information. The job needs no Spark session and writes no run record.

    Args:
        name: the name of the job, such as `champion`.
        arguments: the parsed command line, with the options of `job_parser`.
        stage: returns the text to print, and the job summary.
        with_summary: whether the job summary is printed too.

    Returns:
        The exit code.
    """
    from conf.load import load_config, parse_date
    from storage.run_context import RunContext

    start = time.monotonic()
    try:
        config = load_config(arguments.config, arguments.overrides)
        context = RunContext(name, config, parse_date(arguments.run_date, future=arguments.future))
        text, summary = stage(context)
    except NightrankError as error:
        return report_failure(f"{name} failed", error)
    except OSError as error:
        return report_failure(f"{name} failed", error, "check that the lake can be reached, then retry")
    except KeyboardInterrupt:
        return report_interruption(name)
    print(text)
    total = time.monotonic() - start
    if with_summary:
        print(summary.completed(name, context.run_date, context.phases, total).line())
    return EXIT_OK


def report_interruption(name: str) -> int:
    """Writes to standard error that Ctrl-C (SIGINT) ended a job. Returns the exit code."""
    print(
        f"{name} was interrupted\n  what to do: start it again; readers of the tables see only complete data",
        file=sys.stderr,
        flush=True,
    )
    return INTERRUPTED


def report_failure(what: str, error: NightrankError | OSError, remedy: str = "") -> int:
    """Writes the error that ends a job to standard error.

    Args:
        what: the beginning of the message, such as `show failed`.
        error: the error.
        remedy: the remedy for an OSError. A NightrankError contains its own remedy.

    Returns:
        The exit code.
    """
    if isinstance(error, NightrankError):
        print(f"{what}: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    print(f"{what}: {printable(error)}\n  what to do: {remedy}", file=sys.stderr, flush=True)
    return EXIT_INFRASTRUCTURE
