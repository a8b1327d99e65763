"""Answers HTTP requests with the model that serves on a run date.

Requests and answers for probabilities have the JSON formats of MLflow's scoring server.
"""

from __future__ import annotations

import argparse
import html
import ipaddress
import json
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import pyarrow as pa

from conf.errors import ConfigError, DataError, InfrastructureError, NightrankError
from conf.messages import counted
from jobs.command_line import job_parser, run_without_session
from jobs.http_server import (
    HttpAnswer,
    HttpApplication,
    HttpLimits,
    HttpRequest,
    RefusedError,
    Route,
    serve,
)
from nightrank.model import Model
from scoring.model.champion import serving_model_and_dataset
from storage.job_summary import JobSummary
from storage.run_context import RunContext

DESCRIPTION = (
    "Answers HTTP requests with the model that serves on a run date (the champion or its refit), until "
    "SIGTERM or Ctrl-C. POST /invocations, in the JSON formats of MLflow's scoring server, returns "
    "click probabilities of raw rows. GET /recommendations/USER?k=10 returns the list that the model makes "
    "for a user from the candidates of the run date. GET /health answers as soon as requests are accepted, "
    "and GET /metrics returns counts and durations of requests for Prometheus."
)
_MIB = 1024**2

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MAX_ROWS = 100_000
_SHORTEST_TOKEN = 16
_LONGEST_MESSAGE = 1_000
_SPLIT, _RECORDS = "dataframe_split", "dataframe_records"


@dataclass(frozen=True)
class ServeOptions:
    """The command line of serve_model.

    Attributes:
        host, port: the address; port 0 chooses a free one.
        token_file: a file with the token that requests must send; None if requests need no token.
        tls_cert, tls_key: PEM files of the certificate chain and its key; None if connections are not
            encrypted.
        limits: limits for the size and the number of requests, and for connections.
        max_k: maximum length of a requested list.
    """

    host: str
    port: int
    token_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    limits: HttpLimits = field(default_factory=HttpLimits)
    max_k: int = 1000


class ServedModel:
    """A model that answers requests from several threads, and counts rows and lists.

    Args:
        model: the model.

    Attributes:
        rows: number of rows that were scored.
        lists: number of lists that were made.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.rows = self.lists = 0
        self._lock = Lock()

    def score(self, rows: pa.Table) -> pa.ChunkedArray:
        """Returns the click probabilities of raw rows.

        Raises:
            NightrankError: see `Model.score`.
        """
        probabilities: pa.ChunkedArray = self.model.score(rows)
        with self._lock:
            self.rows += len(rows)
        return probabilities

    def recommend(self, user: str, k: int | None) -> list[dict[str, Any]]:
        """Returns the list of a user: position, item_id, score and reason of each entry.

        The list of an unknown user, or of a user without candidates, is empty. Requests wait for each other,
        because one list uses all cores.

        Raises:
            NightrankError: see `Model.recommend`.
        """
        with self._lock:
            entries = self.model.recommend([user], k, unknown="skip").drop_columns(["user_id"]).to_pylist()
            self.lists += bool(entries)
        return entries


def run(context: RunContext, options: ServeOptions, started: Callable[[str], None]) -> tuple[str, JobSummary]:
    """Serves the model until SIGTERM or SIGINT.

    Args:
        context: the run.
        options: the command line.
        started: a function that is called with a text that contains the address, as soon as requests are
            accepted.

    Returns:
        A text for a terminal, and the summary.

    Raises:
        ConfigError: the address, the token or the certificate cannot be used, or other machines could
            connect without a token or without encryption.
        DataError: there is no champion.
        InfrastructureError: the address is in use.
    """
    token = None if options.token_file is None else read_token(options.token_file)
    tls = tls_context(options.tls_cert, options.tls_key)
    info, _ = serving_model_and_dataset(context)
    served = ServedModel(Model(context.lake, info, context.run_date, context.config))
    with _bound(options.host, options.port) as listener, _ends_by_signal():
        _require_protection(listener, token, tls)
        with context.phase("load"):
            app = application(context, served, options, token)
        scheme = "http" if tls is None else "https"
        address = f"{scheme}://{_shown_host(options.host)}:{listener.getsockname()[1]}"
        listener.listen(options.limits.connections)
        started(f"model {info.version} of {context.run_date} answers at {address}; Ctrl-C ends the server")
        with context.phase("serve"):
            serve(app, listener, tls)
    facts = {"model_version": info.version, "scored_rows": served.rows, "lists": served.lists}
    text = f"{counted(served.rows, 'row')} scored, {counted(served.lists, 'list')} made"
    return text, JobSummary(address, None, None, None, facts)


def application(
    context: RunContext, served: ServedModel, options: ServeOptions, token: str | None
) -> HttpApplication:
    """Returns the server of the loaded model."""
    columns = list(served.model.workflow.raw_columns)
    served.score(pa.table({name: pa.nulls(0) for name in columns}))  # loads the model before any request

    def invocations(request: HttpRequest) -> HttpAnswer:
        if request.media_type != "application/json":
            raise RefusedError(415, "send JSON, with the header Content-Type: application/json")
        try:
            probabilities = served.score(rows_of(request.body, columns)).to_pylist()
        except NightrankError as error:
            raise _refused(error, (ConfigError, DataError)) from error
        return _json({"predictions": [{"probability": value} for value in probabilities]})

    def recommendations(request: HttpRequest) -> HttpAnswer:
        k = _length(request.query.get("k"), options.max_k)
        try:
            entries = served.recommend(request.rest, k)
        except NightrankError as error:
            raise _refused(error, (ConfigError,)) from error
        if not entries:
            raise RefusedError(404, f"user {request.rest!r} has no candidates on {context.run_date}")
        return _json(entries)

    health = HttpAnswer(b"\n")
    page = HttpAnswer(_page(context, served.model.version).encode(), "text/html; charset=utf-8")
    return HttpApplication(
        [
            Route("/health", lambda _: health, is_public=True, is_work=False),
            Route("/ping", lambda _: health, is_public=True, is_work=False),
            Route("/invocations", invocations, method="POST"),
            Route("/recommendations/", recommendations),
            Route("/", lambda _: page, is_work=False),
        ],
        options.limits,
        token,
    )


def rows_of(body: bytes, columns: Sequence[str]) -> pa.Table:
    """Returns the rows of a request in MLflow's JSON formats `dataframe_split` or `dataframe_records`.

    The time and the memory are linear in the bytes of the body, because only columns of the model are
    created.

    Args:
        body: JSON with one key, the name of the format.
        columns: the raw columns of the model. A column that the request does not have is left out. Other
            columns of the request are ignored.

    Raises:
        DataError: the body has another form, more than 100,000 rows, or values of different types in a
            column.
    """
    try:
        request = json.loads(body)
    except RecursionError:
        raise DataError("the body has too many levels of JSON", _FORMATS) from None
    except ValueError as error:
        raise DataError(f"the body is not JSON: {str(error)[:200]}", _FORMATS) from None
    if not isinstance(request, dict) or len(request) != 1 or not {_SPLIT, _RECORDS} & request.keys():
        raise DataError(f"the body is not an object with the key {_SPLIT} or {_RECORDS}", _FORMATS)
    ((kind, content),) = request.items()
    values = _of_split(content, columns) if kind == _SPLIT else _of_records(content, columns)
    return pa.table({name: _array(name, column) for name, column in values.items()})


_FORMATS = (
    f'send {{"{_RECORDS}": [{{"column": value, …}}, …]}}, or '
    f'{{"{_SPLIT}": {{"columns": ["column", …], "data": [[value, …], …]}}}}'
)


def _of_split(content: Any, columns: Sequence[str]) -> Mapping[str, list[Any]]:
    """Returns the values of the model's columns in a `dataframe_split` object."""
    if not isinstance(content, dict) or not content.keys() <= {"columns", "index", "data"}:
        raise DataError(f"{_SPLIT} is not an object with columns and data", _FORMATS)
    names, rows = content.get("columns"), _checked_rows(content.get("data"))
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"columns of {_SPLIT} is not a list of names", _FORMATS)
    if len(set(names)) < len(names):
        raise DataError(f"columns of {_SPLIT} has a name twice", _FORMATS)
    for index, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(names):
            raise DataError(f"row {index} of {_SPLIT} is not a list of {len(names)} values", _FORMATS)
    places = {name: place for place, name in enumerate(names)}
    return {name: [row[places[name]] for row in rows] for name in columns if name in places}


def _of_records(content: Any, columns: Sequence[str]) -> Mapping[str, list[Any]]:
    """Returns the values of the model's columns in a `dataframe_records` list."""
    for index, row in enumerate(_checked_rows(content)):
        if not isinstance(row, dict):
            raise DataError(f"row {index} of {_RECORDS} is not an object", _FORMATS)
    present = set().union(*content)
    return {name: _of_column(content, name) for name in columns if name in present}


def _of_column(rows: list[dict[str, Any]], name: str) -> list[Any]:
    """Returns the values of a column. Raises DataError if a row lacks it."""
    try:
        return [row[name] for row in rows]
    except KeyError:
        row = next(index for index, row in enumerate(rows) if name not in row)
        raise DataError(
            f"row {row} of {_RECORDS} lacks the column {name}, which other rows have",
            "send the same columns in all rows, and null for a missing value",
        ) from None


def _checked_rows(rows: Any) -> list[Any]:
    """Returns the rows. Raises DataError if they are not a list, or if there are too many."""
    if not isinstance(rows, list) or not rows:
        raise DataError("the body has no list of rows", _FORMATS)
    if len(rows) > _MAX_ROWS:
        raise DataError(f"the body has {len(rows):,} rows, more than {_MAX_ROWS:,}", "send several requests")
    return rows


def _array(name: str, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values, from_pandas=True)  # NaN is null, as in a frame of pandas
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DataError(
            f"column {name}: its values have no common type: {str(error)[:200]}",
            "send numbers, strings, or lists of them, and null",
        ) from None


def _length(text: str | None, longest: int) -> int | None:
    """Returns the parameter k of a request; None if it is missing."""
    if text is None:
        return None
    if not text.isascii() or not text.removeprefix("-").isdigit() or len(text) > 9:
        raise RefusedError(400, f"k={text[:50]!r} is not an integer")
    if int(text) > longest:
        raise RefusedError(400, f"k={text} is larger than {longest}, the limit of this server")
    return int(text)


def _refused(error: NightrankError, of_request: tuple[type[NightrankError], ...]) -> RefusedError:
    """Returns status 400 for an error of the request, and 503 for an error of the lake."""
    return RefusedError(400 if isinstance(error, of_request) else 503, str(error)[:_LONGEST_MESSAGE])


def _json(value: Any) -> HttpAnswer:
    return HttpAnswer(json.dumps(value).encode())


_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 16px sans-serif; margin: 2rem; max-width: 50rem }}
td {{ padding: .2rem 1rem .2rem 0 }}
</style>
</head><body><h1>{title}</h1><p>Model <code>{version}</code>.</p>
<table>
<tr><td><code>GET /recommendations/USER?k=10</code></td><td>the list of a user</td></tr>
<tr><td><code>POST /invocations</code></td><td>click probabilities of raw rows</td></tr>
<tr><td><code>GET /metrics</code></td><td>counts and durations of requests, for Prometheus</td></tr>
<tr><td><code>GET /health</code></td><td>200 if the server answers</td></tr>
</table></body></html>
"""


def _page(context: RunContext, version: str) -> str:
    """Returns the page at the path `/`. It loads no other file."""
    title = f"Nightrank: {context.config.name}, {context.run_date}"
    return _PAGE.format(title=html.escape(title), version=html.escape(version))


# The functions below read and check the token, the certificate and the address.


def read_token(path: str) -> str:
    """Returns the token in a file, without white space at its ends.

    Raises:
        ConfigError: the file cannot be read, or its content is not a token of at least 16 printable ASCII
            characters without spaces.
    """
    try:
        with open(os.path.expanduser(path), encoding="ascii") as file:
            token = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file {path} cannot be read: {error}", "correct --token-file") from error
    if len(token) < _SHORTEST_TOKEN or not token.isprintable() or " " in token:
        raise ConfigError(
            f"--token-file {path} has no token of at least {_SHORTEST_TOKEN} letters, digits or signs",
            f"make one: openssl rand -hex 32 > {path}",
        )
    return token


def tls_context(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    """Returns the settings of TLS 1.2 or newer; None if no certificate and no key are given.

    Raises:
        ConfigError: only one file is given, or the files are not a certificate with its key.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("--tls-cert and --tls-key must be used together", "pass both options, or none")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # An empty password, because OpenSSL would otherwise ask for a password on the terminal.
        context.load_cert_chain(os.path.expanduser(certificate), os.path.expanduser(key), password="")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"--tls-cert {certificate} and --tls-key {key} cannot be used: {error}",
            "pass PEM files of a certificate chain and of its key, which has no password",
        ) from error
    return context


def _require_protection(listener: socket.socket, token: str | None, tls: ssl.SSLContext | None) -> None:
    """Raises ConfigError if other machines can connect, and there is no token or no encryption."""
    address = listener.getsockname()[0]
    if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return
    missing = [
        option
        for option, value in (("--token-file", token), ("--tls-cert and --tls-key", tls))
        if value is None
    ]
    if missing:
        raise ConfigError(
            f"other machines can connect to {address}, and {' and '.join(missing)} are missing",
            "pass --token-file, --tls-cert and --tls-key, or --host 127.0.0.1",
        )


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """Yields a socket with this address. It does not accept connections yet.

    Raises:
        ConfigError: the address does not belong to this machine, or the port is not from 0 to 65535.
        InfrastructureError: another program uses the port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OverflowError, socket.gaierror) as error:
            raise ConfigError(f"--host {host} --port {port}: {error}", "correct --host or --port") from error
        except OSError as error:
            raise InfrastructureError(
                f"--host {host} --port {port}: {error}", "choose another --port, or 0 for a free one"
            ) from error
        yield listener


def _shown_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@contextmanager
def _ends_by_signal() -> Iterator[None]:
    """Ignores signals during a `with` block.

    When a signal arrives, uvicorn stops the server, and then sends the same signal to this process again.
    """
    before = {number: signal.signal(number, _ignore) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore(number: int, frame: object) -> None:
    """Does nothing, because uvicorn has already handled the signal."""


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
        help="maximum number of requests that wait or are being answered; further requests get status 503 "
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
