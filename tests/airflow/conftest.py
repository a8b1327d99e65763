"""One Airflow for the folder: first its environment alone, then a training and a night by dag.test(), then the scheduler."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from local_airflow.environment import environment
from local_airflow.processes import airflow, running
from local_airflow.rest import Api
from setup.console import SetupError
from tests.airflow.world import TRAINED, Alerts, World, listening, make_world
from tests.etl.lakes.servers import missing
from tests.standalone import Cluster, standalone_cluster

INSIDE = Path(__file__).parent / "inside"


@pytest.fixture(scope="package")
def airflow_environment() -> Path:
    try:
        return environment()
    except SetupError as error:
        missing(f"Airflow's environment cannot be made: {error}")
        raise


@pytest.fixture(scope="package")
def alerts() -> Iterator[Alerts]:
    with listening() as found:
        yield found


@pytest.fixture(scope="package")
def airflow_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path_factory.mktemp("airflow-cluster")) as started:
        yield started


@pytest.fixture(scope="package")
def world(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    alerts: Alerts,
    airflow_environment: Path,
    airflow_cluster: Cluster,
) -> World:
    made = make_world(spark, tmp_path_factory.mktemp("airflow"), alerts.url, airflow_cluster)
    airflow(airflow_environment, made.home, "db", "migrate")
    return made


@pytest.fixture(scope="package")
def inside(world: World, airflow_environment: Path) -> Callable[..., Any]:
    """Runs a script of tests/airflow/inside with Airflow's interpreter; returns the JSON that it printed last."""

    def call(script: str, *words: str, **environment: str) -> Any:
        done = subprocess.run(
            [airflow_environment / "bin/python", INSIDE / f"{script}.py", *words],
            env={**world.home.environment(), "PYTHONPATH": str(world.home.dags), **environment},
            cwd=world.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return call


@pytest.fixture(scope="package")
def trained(inside: Callable[..., Any], world: World) -> dict[str, Any]:
    """TRAINED, by dag.test(): a training whose model is promoted, and the night of that day. Task states by DAG.

    Only this day has candidates by a retriever, and lists that are delivered.
    """
    retrieval = "candidates.sources=[{source: retrieval, n: 60, model: ../models/two_tower_small.yaml}]"
    sink = f"deliver.sinks=[{{kind: json_lines, name: files, path: {world.delivered}}}]"
    conf = json.dumps({"run_date": TRAINED, "set": [retrieval, sink]})
    found: dict[str, Any] = inside("run_dags", f"weekly_training={conf}", f"daily_recommendations={conf}")
    return found


@pytest.fixture(scope="package")
def api(world: World, airflow_environment: Path, trained: dict[str, Any]) -> Iterator[Api]:
    """The API of a real scheduler, DAG processor, triggerer and API server, on the lake that dag.test() has left."""
    shutil.copy(INSIDE / "late_night.py", world.home.dags)
    with running(airflow_environment, world.home) as started:
        yield started
    assert processes_of(world) == []


def processes_of(world: World) -> list[str]:
    """The command lines of what runs with this Airflow's folder in its environment."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("AIRFLOW_HOME") == str(world.home.folder):
                found.append(" ".join(process.cmdline()))
    return found
