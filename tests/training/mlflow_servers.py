"""Real servers of MLflow on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from local_airflow.home import free_port
from tests.processes import ROOT, die_with_parent, kill_tree, wait_for


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """The address of a tracking server with a SQLite store, which keeps artifacts in the folder."""
    options = ["server", "--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/server.db"]
    with _started(folder, options, "/health") as address:
        yield address


@contextmanager
def scoring_server(folder: Path, model: str, environment: dict[str, str]) -> Iterator[str]:
    """The address of `mlflow models serve` with a model."""
    options = ["models", "serve", "--env-manager", "local", "--model-uri", model]
    with _started(folder, options, "/ping", environment) as address:
        yield address


@contextmanager
def _started(
    folder: Path, options: Sequence[str], probe: str, environment: dict[str, str] | None = None
) -> Iterator[str]:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    scripts = Path(sys.executable).parent
    command = [str(scripts / "mlflow"), *options, "--host", "127.0.0.1", "--port", str(port)]
    settings = {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "PYTHONPATH": str(ROOT),
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",  # mlflow starts uvicorn by its name
        **(environment or {}),
    }
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, **settings},
            start_new_session=True,
            preexec_fn=die_with_parent,
        )

    def answers() -> bool:
        assert process.poll() is None, (folder / "server.log").read_text()[-3000:]
        try:
            with urlopen(f"{address}{probe}", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        wait_for("MLflow's server", answers, poll_s=0.2)
        yield address
    finally:
        kill_tree(process)
