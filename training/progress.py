"""Sends the progress of training to the driver: rank 0 sends its history entries, and the driver listens.

    driver                              rank 0
    Listener(host) ── Channel ───────▶  Reporter(channel)
       show(entry)  ◀── JSON lines ───    (entry)

This module must never cause a training run to fail or wait. If an entry cannot be sent, it is dropped. If
rank 0 cannot reach the driver, it stops trying. A sender must first send the channel's token; otherwise the
listener closes the connection. The listener has a bounded number of threads, and each waits a bounded time.
"""

from __future__ import annotations

import hmac
import json
import logging
import queue
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from conf.errors import NightrankError

log = logging.getLogger("nightrank.progress")
Report = Callable[[Mapping[str, Any]], None]
_TIMEOUT_S = 5.0
_LONGEST_LINE_BYTES = 64 * 1024
_MAX_WAITING_ENTRIES = 256
# Rank 0 needs one connection. There may be more: those of former ranks 0 whose machines were lost, and those
# of unknown senders.
_MAX_CONNECTIONS = 16
# A sender that has no entries sends an empty line this often. So the listener can detect and close lost
# connections.
_HEARTBEAT_S = 20.0
_SILENCE_S = 90.0


@dataclass(frozen=True)
class Channel:
    """The address where the driver listens for progress, and the token that a sender must send first."""

    host: str
    port: int
    token: str = field(repr=False)


class Listener:
    """Listens for progress in the driver. Use it as a context manager, which returns the channel.

    Args:
        host: the host name at which ranks reach the driver.
        bind: the address to listen on.
        show: called with one entry at a time in a thread of the listener. If `show` raises an error, it is
            not called again.
    """

    def __init__(self, host: str, bind: str, show: Report) -> None:
        self._show: Report | None = show
        self._lock = threading.Lock()
        self._token = secrets.token_hex(16)
        self._server = _Server((bind, 0), self._receive)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="progress", daemon=True
        )
        self._channel = Channel(host, self._server.server_address[1], self._token)

    def __enter__(self) -> Channel:
        self._thread.start()
        return self._channel

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        with self._lock:
            self._show = None

    def _receive(self, connection: socket.socket) -> None:
        """Reads the lines of one sender until the sender closes the connection.

        A new rank 0 may connect before the former rank 0 has disconnected.
        """
        if not hmac.compare_digest(_read_token(connection, len(self._token)), self._token.encode()):
            return
        connection.settimeout(_SILENCE_S)
        with connection.makefile("rb") as lines:
            while line := lines.readline(_LONGEST_LINE_BYTES):
                if line.strip():
                    self._show_line(line)

    def _show_line(self, line: bytes) -> None:
        with self._lock:
            if self._show is None:
                return
            try:
                self._show(json.loads(line))
            except Exception:
                log.exception("progress is no longer shown")
                self._show = None


def _read_token(connection: socket.socket, length: int) -> bytes:
    """Returns the first line of a sender, which must have `length` bytes and arrive within `_TIMEOUT_S`.

    Raises:
        TimeoutError: the complete line did not arrive in time.
    """
    deadline, received = time.monotonic() + _TIMEOUT_S, b""
    while len(received) <= length:
        if (remaining := deadline - time.monotonic()) <= 0:
            raise TimeoutError("the sender's token did not arrive in time")
        connection.settimeout(remaining)
        part = connection.recv(length + 1 - len(received))
        if not part:
            break
        received += part
    return received.removesuffix(b"\n")


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128
    # If true, closing the server would wait for its threads, some of which may wait for lost machines.
    block_on_close = False

    def __init__(self, address: tuple[str, int], receive: Callable[[socket.socket], None]) -> None:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                receive(self.request)

        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        super().__init__(address, Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread for a connection, or closes it if there are too many."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            log.debug(
                "a connection from %s is refused, because %d are open", client_address, _MAX_CONNECTIONS
            )
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves a connection until it is closed."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("the connection that sends progress from %s was lost", client_address, exc_info=True)


class Reporter:
    """Sends history entries from rank 0 in a thread, so that a call returns at once.

    Use it as a context manager.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._entries: queue.Queue[Mapping[str, Any] | None] = queue.Queue(_MAX_WAITING_ENTRIES)
        self._thread = threading.Thread(target=self._send, name="progress", daemon=True)

    def __enter__(self) -> Reporter:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._put(None)
        self._thread.join(timeout=_TIMEOUT_S)

    def __call__(self, entry: Mapping[str, Any]) -> None:
        """Queues a history entry that is sent to the driver; drops it if the queue is full."""
        self._put(dict(entry))

    def _put(self, entry: Mapping[str, Any] | None) -> None:
        try:
            self._entries.put_nowait(entry)
        except queue.Full:
            log.debug("a progress entry was dropped: the driver is slower than the training")

    def _send(self) -> None:
        try:
            with socket.create_connection(
                (self._channel.host, self._channel.port), timeout=_TIMEOUT_S
            ) as connection:
                connection.sendall(f"{self._channel.token}\n".encode())
                while (entry := self._next()) is not None:
                    connection.sendall(f"{json.dumps(entry, default=str) if entry else ''}\n".encode())
        except OSError as error:
            log.info("progress is no longer sent to the driver: %s", error)

    def _next(self) -> Mapping[str, Any] | None:
        """Returns the next entry to send, an empty mapping if none comes in time, or None at the end."""
        try:
            return self._entries.get(timeout=_HEARTBEAT_S)
        except queue.Empty:
            return {}


# The outcome of a rank, which Spark sends to the driver.


@dataclass(frozen=True)
class RankOutcome:
    """The result of a rank: the description of the trained model, or the error that ended the rank.

    Spark's Python worker and the driver unpickle this object. This module therefore imports no slow modules
    such as torch.

    Attributes:
        description: the content of the model's model.json; None after an error.
        error: the typed error that ended the rank.
        problem: the text of any other error, with its traceback.
        lost_peer: True if `problem` only reports that another rank was lost.
    """

    description: dict[str, Any] | None = None
    error: NightrankError | None = None
    problem: str = ""
    lost_peer: bool = False
