"""The server of `nightrank serve` keeps its limits, with real connections of clients that behave badly."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.certificates import certificate_in
from tests.processes import ROOT, die_with_parent, environment

pytestmark = pytest.mark.processes
TOKEN = "a-token-of-this-test"


@dataclass
class Server:
    """A server in its own process."""

    port: int
    process: subprocess.Popen[str]
    tls: ssl.SSLContext | None = None

    def connect(self) -> socket.socket:
        """A connection on which nothing was sent."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def ask(
        self, path: str, body: bytes | None = None, token: str | None = TOKEN, method: str | None = None
    ) -> tuple[int, bytes]:
        """Status and body of an answer."""
        where = ("127.0.0.1", self.port, 30)
        connection: http.client.HTTPConnection = (
            http.client.HTTPConnection(*where[:2], timeout=30)
            if self.tls is None
            else http.client.HTTPSConnection(*where[:2], timeout=30, context=self.tls)
        )
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            connection.request(method or ("GET" if body is None else "POST"), path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric over the samples with these labels."""
        _, text = self.ask("/metrics")
        samples = [
            sample for family in text_string_to_metric_families(text.decode()) for sample in family.samples
        ]
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


Started = Callable[..., Server]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    with ExitStack() as stack:

        def start(tls: tuple[str, str] | None = None, token: str | None = TOKEN, **limits: float) -> Server:
            certificate, key = tls or (None, None)
            settings = {"limits": limits, "token": token, "certificate": certificate, "key": key}
            (tmp_path / "settings.json").write_text(json.dumps(settings))
            return stack.enter_context(running(tmp_path))

        yield start


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    process = subprocess.Popen(
        [sys.executable, ROOT / "tests/jobs/http_process.py", folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        preexec_fn=die_with_parent,
    )
    with process:
        assert process.stdout is not None
        yield Server(int(process.stdout.readline()), process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def is_closed(connection: socket.socket) -> bool:
    """Whether the server closes the connection within the time-out of the socket; reads what it sends."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def test_50_clients_are_served_beside_300_half_open_connections(started: Started) -> None:
    server = started(read_s=4.0)
    head = (
        f"POST /echo HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 9\r\n".encode()
    )
    with ExitStack() as stack:
        opened = [stack.enter_context(server.connect()) for _ in range(300)]
        for index, connection in enumerate(opened):
            connection.sendall((b"", head, head + b"\r\nhalf")[index % 3])
        start = time.monotonic()
        with ThreadPoolExecutor(50) as clients:
            answers = list(clients.map(lambda _: server.ask("/work?s=0.02"), range(50)))
        assert time.monotonic() - start < 4.0  # all connections are still open
        assert answers == [(200, b"done")] * 50
        for connection in opened:
            assert is_closed(connection)
        assert time.monotonic() - start < 15.0
    assert server.ask("/health") == (200, b"up")
    assert server.metric("nightrank_serve_closed_connections_total", reason="slow_head") == 200
    assert server.metric("nightrank_serve_errors_total", route="/echo", status="408") == 100
    assert server.metric("nightrank_serve_connections") == 1  # the one that asks


def test_health_answers_while_all_threads_work_and_requests_wait(started: Started) -> None:
    server = started(threads=2, requests=4)
    with ThreadPoolExecutor(4) as clients:
        waiting = [clients.submit(server.ask, "/work?s=1.5") for _ in range(4)]
        while server.metric("nightrank_serve_requests_in_work") < 4:
            time.sleep(0.01)
        start = time.monotonic()
        assert server.ask("/health", token=None) == (200, b"up")
        status, body = server.ask("/work")
        assert (status, b"4 requests wait or are being answered" in body) == (503, True)
        assert time.monotonic() - start < 1.0
        assert [future.result()[0] for future in waiting] == [200] * 4
    assert server.ask("/work") == (200, b"done")


@pytest.mark.parametrize(
    "sent, status",
    [
        (b"POST /echo HTTP/1.1\r\nHost: a\r\n{token}Content-Length: 1001\r\n\r\n", 413),
        (
            b"POST /echo HTTP/1.1\r\nHost: a\r\n{token}Transfer-Encoding: chunked\r\n\r\n3e9\r\n"
            + b"x" * 1001
            + b"\r\n",
            413,
        ),
        (
            b"POST /echo HTTP/1.1\r\nHost: a\r\n{token}Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"0\r\n\r\nGET /work HTTP/1.1\r\nHost: a\r\n\r\n",
            400,
        ),
        (b"GET /work HTTP/1.1\r\nHost: a\r\n{token}Content-Length: 1\r\n\r\nx", 413),
        (b"POST /echo HTTP/1.1\r\nHost: a\r\n{token}Content-Length: 5\r\n\r\nfour", 408),
        (b"GET /work HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 20_000, 400),
        (b"GET /work HTTP/1.1\r\nHost: a\r\n\r\n", 401),
        (b"GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n", 401),
        (b"GET /nowhere HTTP/1.1\r\nHost: a\r\n{token}\r\n", 404),
        (b"PUT /echo HTTP/1.1\r\nHost: a\r\n{token}\r\n", 405),
        (b"\x16\x03\x01\x02\x00\x01 no HTTP\r\n\r\n", 400),
        (b"GET /fails HTTP/1.1\r\nHost: a\r\n{token}Connection: close\r\n\r\n", 500),
    ],
)
def test_bad_requests_get_a_status_and_the_connection_is_closed(
    server: Server, sent: bytes, status: int
) -> None:
    with server.connect() as connection:
        connection.sendall(sent.replace(b"{token}", f"Authorization: Bearer {TOKEN}\r\n".encode()))
        received = b""
        while part := connection.recv(65536):
            received += part
    assert int(received.split()[1]) == status
    assert b"secret of this server" not in received


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    settings: dict[str, Any] = {"limits": {"body_bytes": 1000, "read_s": 1.0}, "token": TOKEN}
    (folder / "settings.json").write_text(json.dumps({**settings, "certificate": None, "key": None}))
    with running(folder) as started:
        yield started


def test_a_body_within_the_limit_is_read(server: Server) -> None:
    assert server.ask("/echo", b"x" * 1000) == (200, b'[1000, "", ""]')
    assert server.ask("/work", token="a-token-of-this-tesT")[0] == 401
    assert server.ask("/health", token=None, method="HEAD") == (200, b"")


def test_a_client_that_does_not_read_its_answer_is_closed(server: Server) -> None:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(
            f"GET /large HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
        )
        deadline = time.monotonic() + 20
        while server.metric("nightrank_serve_closed_connections_total", reason="slow_reader") == 0:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    status, body = server.ask("/large")
    assert (status, len(body)) == (200, 16 * 1024**2)


def test_an_idle_connection_gives_way_to_a_new_one(started: Started) -> None:
    server = started(connections=10, token=None)
    with ExitStack() as stack:
        oldest = stack.enter_context(server.connect())
        oldest.settimeout(0.05)
        while not is_closed(oldest):
            stack.enter_context(server.connect())
        assert server.ask("/health") == (200, b"up")
        assert server.metric("nightrank_serve_connections") == 10


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return certificate_in(tmp_path_factory.mktemp("tls"))


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_tls_is_spoken_and_a_handshake_that_does_not_end_is_closed(
    started: Started, certificate: tuple[str, str]
) -> None:
    server = started(tls=certificate, read_s=1.0)
    server.tls = ssl.create_default_context(cafile=certificate[0])
    with ExitStack() as stack:
        silent = [stack.enter_context(server.connect()) for _ in range(20)]
        assert server.ask("/work") == (200, b"done")
        assert server.ask("/work", token=None)[0] == 401
        for connection in silent:
            connection.settimeout(10)
            assert is_closed(connection)
    old = ssl.create_default_context(cafile=certificate[0])
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    server.tls = old
    with pytest.raises((ssl.SSLError, ConnectionError)):
        server.ask("/health")


def test_a_signal_ends_the_server_beside_half_open_connections(started: Started) -> None:
    server = started(read_s=30.0)
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(server.connect()).sendall(b"GET / HTTP/1.1\r\n")
        assert server.ask("/health") == (200, b"up")
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(timeout=30)
        assert time.monotonic() - start < 10
