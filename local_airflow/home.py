"""The folder with the state of a local Airflow, and the environment variables that configure it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local_airflow.environment import ROOT
from setup.console import SetupError

# Prefixes of environment variables that Airflow must not inherit: settings of another Airflow, and paths to
# this project's packages, which would hide Airflow's packages.
_NOT_OURS = ("AIRFLOW", "PYTHONPATH", "SPARK_HOME", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Home:
    """The state of one local Airflow.

    Attributes:
        folder: AIRFLOW_HOME, with the database, the logs and a link to the DAGs.
        port: port of the API server and UI on 127.0.0.1.
        variable: the JSON value of the Variable `nightrank`.
        connections: maps each connection id to the JSON value of the connection.
        database: SQLAlchemy address of a PostgreSQL database; None for an SQLite file in the folder.
        options: further environment variables, such as AIRFLOW__CORE__….
    """

    folder: Path
    port: int
    variable: Mapping[str, Any]
    connections: Mapping[str, Mapping[str, Any]]
    database: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The address of the UI and the API."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def dags(self) -> Path:
        """The folder of the DAGs."""
        return self.folder / "dags"

    def prepare(self) -> None:
        """Creates the folder, with a link to the checkout's DAGs, so that edits take effect at once."""
        self.dags.mkdir(parents=True, exist_ok=True)
        (self.folder / "logs").mkdir(exist_ok=True)
        link = self.dags / "airflow_dags"
        link.unlink(missing_ok=True)
        link.symlink_to(ROOT / "airflow_dags")
        secret = self.folder / "secret"
        if not secret.exists():
            secret.touch(mode=0o600)
            secret.write_text(secrets.token_urlsafe(48))

    def environment(self) -> dict[str, str]:
        """Returns the environment of Airflow's processes.

        Everybody who can reach the port is an administrator, so the server listens only on 127.0.0.1.
        """
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_OURS)}
        secret = (self.folder / "secret").read_text()
        return {
            **kept,
            "AIRFLOW_HOME": str(self.folder),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "3",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__SECRET_KEY": secret,
            "AIRFLOW__API_AUTH__JWT_SECRET": secret,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self.database or f"sqlite:///{self.folder}/airflow.db",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.folder / "logs"),
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "AIRFLOW_VAR_NIGHTRANK": json.dumps(self.variable),
            **{f"AIRFLOW_CONN_{name.upper()}": json.dumps(value) for name, value in self.connections.items()},
            **self.options,
        }


def local_variable(config: str, overrides: list[str]) -> dict[str, Any]:
    """Returns the Variable `nightrank` for this checkout and for the environment of this interpreter.

    Raises:
        SetupError: JAVA_HOME is not set; setup/env.sh sets it.
    """
    if "JAVA_HOME" not in os.environ:
        raise SetupError("JAVA_HOME is not set: source setup/env.sh first")
    python = sys.executable
    return {
        "home": str(ROOT),
        "config": config,
        "profiles": {"default": "conf/spark/local.conf"},
        "set": overrides,
        "spark_submit": str(Path(python).with_name("spark-submit")),
        "environment": {
            "JAVA_HOME": os.environ["JAVA_HOME"],
            # The same value as in setup/env.sh. It makes jobs start faster.
            "SPARK_SUBMIT_OPTS": os.environ.get("SPARK_SUBMIT_OPTS", ""),
            "SPARK_LAUNCHER_OPTS": os.environ.get("SPARK_LAUNCHER_OPTS", ""),
            "PYTHONPATH": str(ROOT),  # jobs import this checkout's packages, not installed ones
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
        },
    }


def free_port() -> int:
    """Returns a free port on 127.0.0.1 below the range that systems use for connections (Linux: from 32768).

    Port 0 would select a port in that range. Another connection could take this port in the few seconds
    before the server starts.
    """
    draw = random.SystemRandom()
    while True:
        port = draw.randrange(15_000, 32_000)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
