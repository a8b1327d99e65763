"""An HTTP server for functions that take time, with limits for all input from clients.

uvicorn parses HTTP. `HttpApplication` checks tokens, reads bodies, runs the functions in threads and counts
requests for Prometheus. Connections that send or receive too slowly are closed.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from socket import socket
from typing import Any
from urllib.parse import parse_qsl

import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger("nightrank.serve")

_HEADER_BYTES = 16 * 1024
_IDLE_S = 5  # maximum seconds between two requests of a connection
_STOP_S = 30  # maximum seconds to complete requests after a signal
_SLOW_HEAD, _SLOW_READER, _TOO_MANY = "slow_head", "slow_reader", "too_many"
_NO_ROUTE = "other"  # label in the metrics for all paths without a route, so that clients cannot add labels
_JSON = "application/json"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Pages of this server must not load from other servers, run scripts, or be shown in frames of other pages.
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    ),
)

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


@dataclass(frozen=True)
class HttpLimits:
    """Limits for clients.

    Attributes:
        body_bytes: maximum bytes of the body of a request.
        read_s: time limit for the head of a request, for its body, for a TLS handshake, and for the next part
            of an answer. After this time, the connection is closed.
        requests: maximum number of requests whose body was read and which wait for a thread or are processed.
            Further requests are refused.
        threads: number of requests that are processed at the same time.
        connections: maximum number of open connections. A further connection replaces the connection that has
            waited longest without a request. The default is below the usual limit of open files, 1,024,
            because TLS handshakes also need files.
        buffered_bytes: maximum total bytes of the bodies that are being read. The server refuses a
            request whose body would exceed this total. If `body_bytes` is larger, it is the maximum instead.
    """

    body_bytes: int = 8 * 1024**2
    read_s: float = 10.0
    requests: int = 64
    threads: int = 4
    connections: int = 500
    buffered_bytes: int = 256 * 1024**2


class RefusedError(Exception):
    """An error: the server refuses a request.

    Args:
        status: the HTTP status.
        message: what is wrong with the request, for its sender.
        headers: further headers of the answer.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})


@dataclass(frozen=True)
class HttpRequest:
    """A request that matches a route.

    Attributes:
        rest: the path after the path of the route.
        query: maps each parameter of the query to its last value.
        media_type: the header Content-Type in lower case, without parameters; empty if it is missing.
        body: the body.
    """

    rest: str
    query: Mapping[str, str]
    media_type: str
    body: bytes


@dataclass(frozen=True)
class HttpAnswer:
    """An answer to a request."""

    body: bytes
    media_type: str = _JSON
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Route:
    """A function that answers requests.

    Attributes:
        path: the path. If it ends with `/` and is longer than `/`, the route answers all paths that begin
            with it.
        answer: returns the answer, or raises RefusedError.
        method: GET (then HEAD is allowed too) or POST.
        is_public: whether requests need no token.
        is_work: whether `answer` runs in a thread. Such requests count towards the limit `requests`.
            Otherwise `answer` must be fast, because it runs in the event loop of all connections.
    """

    path: str
    answer: Callable[[HttpRequest], HttpAnswer]
    method: str = "GET"
    is_public: bool = False
    is_work: bool = True

    def matches(self, path: str) -> bool:
        """Returns whether this route answers requests for a path."""
        is_prefix = self.path.endswith("/") and self.path != "/"
        return path == self.path or (is_prefix and path.startswith(self.path))


class ServerMetrics:
    """Counts requests and connections for Prometheus."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "nightrank_serve_requests",
            "Requests that were answered",
            ["route", "status"],
            registry=self._registry,
        )
        self.seconds = Histogram(
            "nightrank_serve_request_seconds",
            "Seconds from the head of a request to the end of its answer",
            ["route"],
            registry=self._registry,
        )
        self.errors = Counter(
            "nightrank_serve_errors",
            "Answers with a status of 400 or more",
            ["route", "status"],
            registry=self._registry,
        )
        self.in_work = Gauge(
            "nightrank_serve_requests_in_work",
            "Requests that wait or are being answered",
            registry=self._registry,
        )
        self.connections = Gauge("nightrank_serve_connections", "Open connections", registry=self._registry)
        self.closed = Counter(
            "nightrank_serve_closed_connections",
            "Connections that the server closed because of a limit",
            ["reason"],
            registry=self._registry,
        )

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Counts an answer in the metrics."""
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)
        if status >= 400:
            self.errors.labels(route, str(status)).inc()

    def text(self) -> bytes:
        """Returns all metrics in Prometheus' text format."""
        text: bytes = generate_latest(self._registry)
        return text


class _DisconnectedError(Exception):
    """An error: the client closed the connection before the complete body was read."""


class HttpApplication:
    """Answers requests as an ASGI application. `/metrics` is one of its routes.

    Args:
        routes: the routes. The first route that matches a request answers it.
        limits: limits for the size and the number of requests, and for connections.
        token: the token that requests must send as `Authorization: Bearer TOKEN`; None if requests need no
            token.
    """

    def __init__(self, routes: Sequence[Route], limits: HttpLimits, token: str | None) -> None:
        self.limits = limits
        self.metrics = ServerMetrics()
        self._routes = (
            *routes,
            Route("/metrics", lambda _: HttpAnswer(self.metrics.text(), METRICS_TYPE), is_work=False),
        )
        self._authorization = None if token is None else f"Bearer {token}".encode()
        self._pool = ThreadPoolExecutor(limits.threads, thread_name_prefix="serve")
        self._admitted = self._buffered = 0

    async def __call__(self, scope: Mapping[str, Any], receive: _Receive, send: _Send) -> None:
        """Answers one request."""
        start = time.perf_counter()
        route = next((route for route in self._routes if route.matches(scope["path"])), None)
        try:
            answer = await self._answer(route, scope, receive)
        except _DisconnectedError:
            return
        except RefusedError as refused:
            body = json.dumps({"message": refused.message, "detail": refused.message}).encode()
            answer = HttpAnswer(body, status=refused.status, headers=refused.headers)
        except Exception:
            log.exception("internal error, please report: %s %s", scope["method"], scope["path"])
            answer = HttpAnswer(b'{"message": "internal error", "detail": "internal error"}', status=500)
        await _send(send, answer)
        name = _NO_ROUTE if route is None else route.path
        self.metrics.answered(name, answer.status, time.perf_counter() - start)

    def close(self) -> None:
        """Ends the threads. Requests that still wait are not processed."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def _answer(self, route: Route | None, scope: Mapping[str, Any], receive: _Receive) -> HttpAnswer:
        headers = {name.lower(): value for name, value in scope["headers"]}
        # h11 does not limit the size of a head that arrives in one part.
        if sum(len(name) + len(value) for name, value in scope["headers"]) > _HEADER_BYTES:
            raise RefusedError(
                431, f"headers may have at most {_HEADER_BYTES:,} bytes", {"connection": "close"}
            )
        # A connection with an unread body cannot be used for another request.
        close = {"connection": "close"}
        # If a request had both Content-Length and Transfer-Encoding, this server would ignore one of them,
        # and a proxy could ignore the other. Then a client could hide a second request in the first body.
        if b"content-length" in headers and b"transfer-encoding" in headers:
            raise RefusedError(400, "send Content-Length or Transfer-Encoding, but not both", close)
        if route is None or not route.is_public:
            self._require_token(headers.get(b"authorization", b""))
        if route is None:
            raise RefusedError(404, f"there is no address {scope['path'][:200]!r}", close)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        if method != route.method:
            raise RefusedError(405, f"use {route.method} for {route.path}", {"allow": route.method, **close})
        limit = self.limits.body_bytes if route.method == "POST" else 0
        body = await self._body(headers.get(b"content-length", b"0"), limit, receive)
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        media_type = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
        request = HttpRequest(scope["path"].removeprefix(route.path), query, media_type, body)
        return await self._worked(route, request) if route.is_work else route.answer(request)

    def _require_token(self, authorization: bytes) -> None:
        """Raises RefusedError if the header does not contain the token.

        The comparison takes the same time for all values of the header.
        """
        if self._authorization is None or hmac.compare_digest(authorization, self._authorization):
            return
        raise RefusedError(
            401,
            "send the server's token in the header Authorization: Bearer TOKEN",
            {"www-authenticate": "Bearer", "connection": "close"},
        )

    async def _body(self, length: bytes, limit: int, receive: _Receive) -> bytes:
        """Returns the body.

        Args:
            length: the header Content-Length; 0 if it is missing. h11 has checked that it is a number.
            limit: maximum bytes of the body.
            receive: returns parts of the body.

        Raises:
            RefusedError: the body is too large, or takes too long.
        """
        too_large = RefusedError(413, f"a body may have at most {limit:,} bytes", {"connection": "close"})
        if int(length) > limit:
            raise too_large
        parts, size, more = [], 0, True
        try:
            async with asyncio.timeout(self.limits.read_s):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _DisconnectedError
                    part = message.get("body", b"")
                    size += len(part)
                    self._buffered += len(part)
                    if size > limit:
                        raise too_large
                    if self._buffered > max(self.limits.buffered_bytes, limit):
                        raise _busy("the server already reads the bodies of too many requests")
                    parts.append(part)
                    more = message.get("more_body", False)
        except TimeoutError:
            seconds = f"{self.limits.read_s:g}"
            raise RefusedError(
                408, f"the body did not arrive within {seconds} s", {"connection": "close"}
            ) from None
        finally:
            self._buffered -= size
        return b"".join(parts)

    async def _worked(self, route: Route, request: HttpRequest) -> HttpAnswer:
        """Returns the answer that a thread computes.

        Raises:
            RefusedError: too many requests wait, or the route refuses this request.
        """
        if self._admitted >= self.limits.requests:
            raise _busy(
                f"{self.limits.requests} requests wait or are being answered, which is the limit of this "
                "server"
            )
        self._admitted += 1
        self.metrics.in_work.set(self._admitted)
        work = asyncio.get_running_loop().run_in_executor(self._pool, route.answer, request)
        work.add_done_callback(self._left)
        return await work

    def _left(self, work: asyncio.Future[HttpAnswer]) -> None:
        self._admitted -= 1
        self.metrics.in_work.set(self._admitted)


def _busy(why: str) -> RefusedError:
    return RefusedError(503, f"{why}; try again", {"retry-after": "1", "connection": "close"})


async def _send(send: _Send, answer: HttpAnswer) -> None:
    headers = [
        (b"content-type", answer.media_type.encode()),
        (b"content-length", str(len(answer.body)).encode()),
        *_HEADERS,
        *((name.encode(), value.encode()) for name, value in answer.headers.items()),
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


class _Connections:
    """The open connections of a server.

    Args:
        limits: limits for the size and the number of requests, and for connections.
        metrics: counts connections.
    """

    def __init__(self, limits: HttpLimits, metrics: ServerMetrics) -> None:
        self.limits = limits
        self._metrics = metrics
        self._open: set[_Connection] = set()
        # An ordered set of the connections that wait for the complete head of a request, the longest first.
        self._waiting: dict[_Connection, None] = {}

    def opened(self, connection: _Connection) -> None:
        """Adds a connection. If there are too many, closes the connection that has waited longest."""
        self._open.add(connection)
        if len(self._open) > self.limits.connections:
            self.close(next(iter(self._waiting), connection), _TOO_MANY)
        self._metrics.connections.set(len(self._open))

    def waits(self, connection: _Connection) -> None:
        """Records that the connection waits for a request. Has no effect if it is already waiting."""
        self._waiting.setdefault(connection)

    def works(self, connection: _Connection) -> None:
        """Records that the client has sent the head of a request."""
        self._waiting.pop(connection, None)

    def close(self, connection: _Connection, reason: str) -> None:
        """Closes a connection at once."""
        self._metrics.closed.labels(reason).inc()
        self.lost(connection)
        connection.transport.abort()

    def lost(self, connection: _Connection) -> None:
        """Removes a connection that is closed. May be called twice."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)
        self._metrics.connections.set(len(self._open))


class _Connection(H11Protocol):
    """A connection that is closed if the client sends the head of a request, or reads an answer, too slowly.

    uvicorn waits for both without a time limit.

    Args:
        connections: the open connections of the server, which this connection joins.
        arguments: further arguments for the constructor of uvicorn's class.
    """

    def __init__(self, connections: _Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._connections = connections
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()
        self._connections.opened(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start(_SLOW_READER)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop(_SLOW_READER)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(_SLOW_HEAD)
        self._stop(_SLOW_READER)
        self._connections.lost(self)
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        """Starts the timer for the head of the next request. Stops it while a request is being answered."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop(_SLOW_HEAD)
            self._connections.works(self)
            return
        # A connection that is closing may still have to send the rest of its answer.
        self._start(_SLOW_READER if self.transport.is_closing() else _SLOW_HEAD)
        self._connections.waits(self)

    def _start(self, reason: str) -> None:
        """Closes the connection after the time limit, if `_stop` is not called earlier."""
        if reason not in self._timers:
            seconds = self._connections.limits.read_s
            self._timers[reason] = self.loop.call_later(seconds, self._connections.close, self, reason)

    def _stop(self, reason: str) -> None:
        if reason in self._timers:
            self._timers.pop(reason).cancel()


class _Server(uvicorn.Server):
    """A server whose connections have limits."""

    def __init__(
        self, config: uvicorn.Config, application: HttpApplication, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(config)
        self._connections = _Connections(application.limits, application.metrics)
        self._tls = tls

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Accepts connections with the time limit for TLS handshakes. uvicorn's limit is a minute."""
        await super().startup(sockets=[])
        loop = asyncio.get_running_loop()
        handshake = None if self._tls is None else self._connections.limits.read_s
        for listener in sockets or []:
            self.servers.append(
                await loop.create_server(
                    self._connection,
                    sock=listener,
                    ssl=self._tls,
                    ssl_handshake_timeout=handshake,
                    ssl_shutdown_timeout=handshake,
                    backlog=self._connections.limits.connections,
                )
            )

    def _connection(self) -> _Connection:
        return _Connection(
            self._connections,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )


def serve(application: HttpApplication, listener: socket, tls: ssl.SSLContext | None) -> None:
    """Answers requests until SIGTERM or SIGINT.

    Args:
        application: answers the requests.
        listener: a bound socket.
        tls: certificate and key; None for connections that are not encrypted.
    """
    config = uvicorn.Config(
        application,
        loop="asyncio",
        http=H11Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # uvicorn does not log invalid requests; they are counted
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=_STOP_S,
        h11_max_incomplete_event_size=_HEADER_BYTES,
    )
    try:
        _Server(config, application, tls).run([listener])
    finally:
        application.close()
