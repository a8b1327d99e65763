"""Answers requests over HTTP with the model that serves on a run date.

MLflow's scoring server reads the requests for probabilities. uvicorn runs it.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

import pandas as pd

from conf.errors import ConfigError, InfrastructureError, NightrankError
from conf.messages import counted
from nightrank.model import Model
from scoring.model.champion import serving_model_and_dataset
from storage.job_summary import JobSummary
from storage.run_context import RunContext
from training.registry.mlflow_model import model_file, scoring_application

if TYPE_CHECKING:
    from fastapi import FastAPI

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class ServedModel:
    """A model that answers requests of several threads, and counts them.

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

    def score(self, rows: pd.DataFrame) -> pd.Series:
        """Returns the click probabilities of raw rows.

        Raises:
            NightrankError: see `Model.score`.
        """
        probabilities: pd.Series = self.model.score(rows)  # type: ignore[assignment]
        with self._lock:
            self.rows += len(rows)
        return probabilities

    def recommend(self, user: str, k: int | None) -> list[dict[str, Any]]:
        """Returns the list of a user: position, item_id, score and reason of each entry.

        The list of an unknown user, or of one without candidates, is empty. Requests wait for each other,
        because all cores work on one list.

        Raises:
            NightrankError: see `Model.recommend`.
        """
        with self._lock:
            entries = self.model.recommend([user], k, unknown="skip").drop_columns(["user_id"]).to_pylist()
            self.lists += bool(entries)
        return entries


def run(context: RunContext, host: str, port: int, started: Callable[[str], None]) -> tuple[str, JobSummary]:
    """Serves the model until SIGTERM or SIGINT.

    Args:
        context: the run.
        host, port: the address; port 0 chooses a free one.
        started: gets a text with the address as soon as requests are accepted.

    Returns:
        A text for a terminal, and the summary.

    Raises:
        ConfigError: the address is not valid.
        DataError: there is no champion.
        InfrastructureError: the address is in use.
    """
    import uvicorn

    info, _ = serving_model_and_dataset(context)
    served = ServedModel(Model(context.lake, info, context.run_date, context.config))
    with _listening(host, port) as listener, _ends_by_signal():
        with context.phase("load"):
            app = application(context, served)
        address = f"http://{_shown_host(host)}:{listener.getsockname()[1]}"
        started(f"model {info.version} of {context.run_date} answers at {address}; Ctrl-C ends it")
        settings = uvicorn.Config(app, log_config=None, access_log=False)
        with context.phase("serve"):
            uvicorn.Server(settings).run([listener])
    facts = {"model_version": info.version, "scored_rows": served.rows, "lists": served.lists}
    text = f"{counted(served.rows, 'row')} scored, {counted(served.lists, 'list')} made"
    return text, JobSummary(address, None, None, None, facts)


def application(context: RunContext, served: ServedModel) -> FastAPI:
    """Returns the server of the loaded model: MLflow's scoring server, with a route for lists."""
    from fastapi import HTTPException

    raw_types = served.model.workflow.raw_columns
    served.model.score(pd.DataFrame(columns=list(raw_types), dtype=object))  # reads the files of the model
    text = model_file(context.lake, served.model.description, raw_types)
    app = scoring_application(text, served.score)

    def recommendations(user: str, k: int | None = None) -> list[dict[str, Any]]:
        try:
            entries = served.recommend(user, k)
        except NightrankError as error:
            status = 400 if isinstance(error, ConfigError) else 503
            raise HTTPException(status, str(error)) from error
        if not entries:
            raise HTTPException(404, f"user {user!r} has no candidates on {context.run_date}")
        return entries

    app.get("/recommendations/{user:path}")(recommendations)
    return app


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """Yields a socket that accepts connections.

    Raises:
        ConfigError: the address is not one of this machine, or the port is not one from 0 to 65535.
        InfrastructureError: another program uses the port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except (OverflowError, socket.gaierror) as error:
        raise ConfigError(f"--host {host} --port {port}: {error}", "correct --host or --port") from error
    except OSError as error:
        raise InfrastructureError(
            f"--host {host} --port {port}: {error}", "choose another --port, or 0 for a free one"
        ) from error
    with listener:
        yield listener


def _shown_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@contextmanager
def _ends_by_signal() -> Iterator[None]:
    """Ignores the signal that uvicorn sends to its own process again after it has answered all requests."""
    before = {number: signal.signal(number, _ignore) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore(number: int, frame: object) -> None:
    """Handles a signal that uvicorn has handled already."""
