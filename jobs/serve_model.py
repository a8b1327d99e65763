"""The command line of serve_model, which needs no Spark session."""

from __future__ import annotations

import argparse
import sys

from jobs.command_line import job_parser, run_without_session
from jobs.stages.http_server import HttpLimits
from jobs.stages.serve_model import ServeOptions, run

DESCRIPTION = (
    "Answers HTTP requests with the model that serves on a run date (the champion or its refit), until "
    "SIGTERM or Ctrl-C. POST /invocations, in the JSON formats of MLflow's scoring server, returns "
    "click probabilities of raw rows. GET /recommendations/USER?k=10 returns the list that the model makes "
    "for a user from the candidates of the run date. GET /health answers as soon as requests are accepted, "
    "and GET /metrics returns counts and times for Prometheus."
)
_MIB = 1024**2


def main(argv: list[str] | None = None) -> int:
    """Serves until a signal, prints the job summary, and returns the exit code."""
    arguments = _parser().parse_args(argv)
    options = ServeOptions(
        arguments.host,
        arguments.port,
        arguments.token_file,
        arguments.tls_cert,
        arguments.tls_key,
        HttpLimits(arguments.max_body_mib * _MIB, arguments.read_seconds, arguments.max_requests),
        arguments.max_k,
    )
    return run_without_session("serve_model", arguments, lambda context: run(context, options, _started))


def _started(text: str) -> None:
    print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line: the options of every job, the address and the limits."""
    parser = job_parser("serve_model", DESCRIPTION)
    limits = HttpLimits()
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address of the network interface, such as 0.0.0.0 for all (default: %(default)s). If other "
        "machines can connect, --token-file, --tls-cert and --tls-key are needed",
    )
    parser.add_argument(
        "--port", type=int, default=8000, help="TCP port; 0 for a free one (default: %(default)s)"
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="file with a token of at least 16 characters; requests other than /health must send it as "
        "Authorization: Bearer TOKEN",
    )
    parser.add_argument(
        "--tls-cert", metavar="PEM", help="file with the certificate chain; connections then use TLS"
    )
    parser.add_argument(
        "--tls-key", metavar="PEM", help="file with the key of the certificate, without a password"
    )
    parser.add_argument(
        "--max-body-mib",
        type=_positive_int,
        default=limits.body_bytes // _MIB,
        metavar="MIB",
        help="maximum size of the body of a request (default: %(default)s)",
    )
    parser.add_argument(
        "--read-seconds",
        type=_positive,
        default=limits.read_s,
        metavar="SECONDS",
        help="time limit for the head of a request, for its body, for a TLS handshake, and for a client "
        "that does not read its answer (default: %(default)s)",
    )
    parser.add_argument(
        "--max-requests",
        type=_positive_int,
        default=limits.requests,
        metavar="N",
        help="maximum number of requests that wait or are in work; further requests get status 503 "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--max-k",
        type=_positive_int,
        default=ServeOptions.max_k,
        metavar="K",
        help="maximum length of a requested list (default: %(default)s)",
    )
    return parser


def _positive_int(text: str) -> int:
    """Returns a positive integer."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is smaller than 1")
    return value


def _positive(text: str) -> float:
    """Returns a positive number."""
    if not 0 < (value := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


if __name__ == "__main__":
    sys.exit(main())
