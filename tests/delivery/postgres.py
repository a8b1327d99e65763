"""A PostgreSQL server on loopback, from the machine's binaries or those of a locked environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_airflow.home import free_port
from tests.etl.lakes.servers import ROOT, Unavailable, interpreter, process

LOCK = ROOT / "requirements/test-postgres.txt"
PASSWORD = "kept-out-of-every-log"
_NOBODY = 65534  # PostgreSQL refuses to run as root


@dataclass(frozen=True)
class Server:
    """Address and credentials of a server. The address says that connections are not encrypted."""

    url: str
    user: str
    password: str


@contextmanager
def postgres(certificate: tuple[str, str] | None = None, settings: Sequence[str] = ()) -> Iterator[Server]:
    """A server with an empty database and one user, who owns it and logs in with a password.

    Args:
        certificate: PEM files of a certificate and its key, for a server that also encrypts.
        settings: further settings of the server, such as `fsync=on`.

    Raises:
        Unavailable: there are no binaries.
    """
    # Not below pytest's own folder, which only its user may enter.
    scratch = Path(tempfile.mkdtemp(prefix="nightrank-postgres-"))
    try:
        binaries = _binaries(scratch)
        options = _as_nobody(scratch)
        (scratch / "password").write_text(PASSWORD)
        data, log = scratch / "data", scratch / "postgres.log"
        tls = []
        for name, file in zip(("ssl_cert_file", "ssl_key_file"), certificate or (), strict=False):
            (scratch / name).write_bytes(Path(file).read_bytes())
            (scratch / name).chmod(0o600)
            tls += ["-c", f"{name}={scratch / name}"]
        for path in scratch.rglob("*") if options else []:
            os.chown(path, _NOBODY, _NOBODY, follow_symlinks=False)
        start = [binaries / "initdb", "-D", data, "-U", "lists", "--pwfile", scratch / "password"]
        initdb = subprocess.run(
            [*map(str, start), "--auth=scram-sha-256", "--encoding=UTF8", "--no-locale", "--no-sync"],
            cwd=scratch,
            capture_output=True,
            text=True,
            check=False,
            **options,
        )
        if initdb.returncode:
            raise Unavailable(f"initdb of {binaries} failed: {initdb.stderr.strip()[-500:]}")
        port = free_port()
        command = [str(binaries / "postgres"), "-D", str(data), "-p", str(port), "-F"]
        command += ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        command += ["-c", "ssl=on", *tls] if certificate else []
        command += [word for setting in settings for word in ("-c", setting)]
        with process(command, log, lambda: "ready to accept connections" in log.read_text(), **options):
            yield Server(f"jdbc:postgresql://127.0.0.1:{port}/postgres?sslmode=disable", "lists", PASSWORD)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _binaries(scratch: Path) -> Path:
    """The newest PostgreSQL installed, or a copy of the locked one where another user can read it."""
    on_path = shutil.which("postgres")
    if on_path:
        return Path(on_path).resolve().parent
    installed = list(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if installed:
        return max(installed, key=_major).parent
    python = interpreter("postgres-server", LOCK, "import pgserver")
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    for folder in (
        "pgserver/pginstall",
        "pgserver.libs",
    ):  # its binaries find the libraries by this way to them
        shutil.copytree(packages / folder, scratch / folder, symlinks=True)
    return scratch / "pgserver/pginstall/bin"


def _major(path: Path) -> int:
    version = re.search(r"/(\d+)/bin/", str(path))
    return int(version[1]) if version else 0


def _as_nobody(scratch: Path) -> dict[str, Any]:
    if os.getuid():
        return {}
    os.chown(scratch, _NOBODY, _NOBODY)
    return {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
