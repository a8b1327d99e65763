"""One Airflow for the folder: its environment, a training and a daily run by dag.test(), the scheduler."""

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
from tests.airflow.airflow_setup import (
    LOCAL_MASTER,
    SPARK,
    TRAINED,
    AirflowSetup,
    Alerts,
    alert_server,
    prepare_airflow,
)
from tests.etl.lakes.servers import missing
from tests.standalone import Cluster, standalone_cluster

SCRIPTS = Path(__file__).parent / "airflow_scripts"


@pytest.fixture(scope="package")
def airflow_environment() -> Path:
    try:
        return environment()
    except SetupError as error:
        missing(f"Airflow's environment cannot be made: {error}")
        raise


@pytest.fixture(scope="package")
def alerts() -> Iterator[Alerts]:
    with alert_server() as alerts:
        yield alerts


@pytest.fixture(scope="package")
def airflow_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path_factory.mktemp("airflow-cluster")) as started:
        yield started


@pytest.fixture(scope="package")
def airflow_setup(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    alerts: Alerts,
    airflow_environment: Path,
    airflow_cluster: Cluster,
) -> AirflowSetup:
    setup = prepare_airflow(spark, tmp_path_factory.mktemp("airflow"), alerts.url, airflow_cluster)
    airflow(airflow_environment, setup.home, "db", "migrate")
    return setup


@pytest.fixture(scope="package")
def run_airflow_script(airflow_setup: AirflowSetup, airflow_environment: Path) -> Callable[..., Any]:
    """Runs a script of airflow_scripts with Airflow's interpreter; returns the JSON that it printed last."""

    def run_script(script: str, *words: str, **environment: str) -> Any:
        done = subprocess.run(
            [airflow_environment / "bin/python", SCRIPTS / f"{script}.py", *words],
            env={
                **airflow_setup.home.environment(),
                "PYTHONPATH": str(airflow_setup.home.dags),
                **environment,
            },
            cwd=airflow_setup.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run_script


@pytest.fixture(scope="package")
def trained(run_airflow_script: Callable[..., Any], airflow_setup: AirflowSetup) -> dict[str, Any]:
    """Task states by DAG after a training and a daily run of TRAINED by dag.test().

    The gate promotes the model.

    Only on this day a retriever makes candidates, and lists are delivered.
    """
    retrieval = "candidates.sources=[{source: retrieval, n: 60, model: ../models/two_tower_small.yaml}]"
    sink = f"deliver.sinks=[{{kind: json_lines, name: files, path: {airflow_setup.delivered}}}]"
    conf = json.dumps({"run_date": TRAINED, "set": [retrieval, sink]})
    states: dict[str, Any] = run_airflow_script(
        "run_dags", f"weekly_training={conf}", f"daily_recommendations={conf}"
    )
    return states


@pytest.fixture(scope="package")
def api(airflow_setup: AirflowSetup, airflow_environment: Path, trained: dict[str, Any]) -> Iterator[Api]:
    """The API of a real scheduler, DAG processor, triggerer and API server, on the lake of `trained`.

    The master of its jobs is local, until a test changes the connection to Spark.
    """
    shutil.copy(SCRIPTS / "late_run.py", airflow_setup.home.dags)
    with running(airflow_environment, airflow_setup.without_spark()) as started:
        started.post("/connections", {"connection_id": SPARK, "conn_type": "spark", "host": LOCAL_MASTER})
        yield started
    assert processes_of(airflow_setup) == []


def processes_of(airflow_setup: AirflowSetup) -> list[str]:
    """The command lines of the processes that have this Airflow's folder in their environment."""
    commands = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("AIRFLOW_HOME") == str(airflow_setup.home.folder):
                commands.append(" ".join(process.cmdline()))
    return commands
