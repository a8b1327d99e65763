"""The command line of serve_model, which needs no Spark session."""

from __future__ import annotations

import argparse
import sys

from jobs.command_line import job_parser, run_without_session
from jobs.stages.serve_model import run

DESCRIPTION = (
    "Answers requests over HTTP with the model that serves on a run date (the champion or its refit), until "
    "it gets SIGTERM or Ctrl-C. POST /invocations, in the JSON formats of MLflow's scoring server, returns "
    "click probabilities of raw rows. GET /recommendations/USER?k=10 returns the list that the model makes "
    "for a user from the candidates of the run date. GET /health answers as soon as requests are accepted."
)


def main(argv: list[str] | None = None) -> int:
    """Serves until a signal, prints the job summary, and returns the exit code."""
    arguments = _parser().parse_args(argv)
    return run_without_session(
        "serve_model", arguments, lambda context: run(context, arguments.host, arguments.port, _started)
    )


def _started(text: str) -> None:
    print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line: the options of every job, and the address."""
    parser = job_parser("serve_model", DESCRIPTION)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address of the network interface, such as 0.0.0.0 for all; there is no access control "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--port", type=int, default=8000, help="TCP port; 0 for a free one (default: %(default)s)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
