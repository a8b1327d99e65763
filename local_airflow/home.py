"""The folder an Airflow keeps its state in, and the environment variables that configure it."""

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

# Nothing of another Airflow, and no package of ours: the folder on PYTHONPATH would shadow Airflow's own.
_NOT_OURS = ("AIRFLOW", "PYTHONPATH", "SPARK_HOME", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Home:
    """One installation's state.

    Attributes:
        folder: AIRFLOW_HOME: database, logs, links to the DAGs.
        port: of the API server and UI, on 127.0.0.1.
        variable: the JSON value of the Variable `nightrank`.
        connections: connection id → its JSON value.
        database: an SQLAlchemy address, for a PostgreSQL; without one an SQLite file in the folder.
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
        return f"http://127.0.0.1:{self.port}"

    @property
    def dags(self) -> Path:
        return self.folder / "dags"

    def prepare(self) -> None:
        """Makes the folder, and in it the link by which Airflow sees the checkout's DAGs: an edit counts at once."""
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
        """What Airflow's processes run with. Everybody who reaches the port is an administrator, so that it is on loopback."""
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
    """The Variable for this checkout and the environment this interpreter belongs to.

    Raises:
        SetupError: JAVA_HOME is not set, as setup/env.sh would.
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
            # What setup/env.sh says: jobs start sooner with it.
            "SPARK_SUBMIT_OPTS": os.environ.get("SPARK_SUBMIT_OPTS", ""),
            "SPARK_LAUNCHER_OPTS": os.environ.get("SPARK_LAUNCHER_OPTS", ""),
            "PYTHONPATH": str(
                ROOT
            ),  # jobs import the packages of this checkout, whoever made the environment
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
        },
    }


def free_port() -> int:
    """A port on 127.0.0.1 that nobody listens on, drawn from below those that systems give to connections (Linux: from 32768).

    Asked of the system by port 0, it would be one of these, and a server that starts seconds later may find it given away.
    """
    draw = random.SystemRandom()
    while True:
        port = draw.randrange(15_000, 32_000)
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port
