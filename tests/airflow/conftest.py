"""One Airflow for the folder: its environment, a training and a daily run by dag.test(), the scheduler."""

from __future__ import annotations

import itertools
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
    generate_log,
    prepare_airflow,
)
from tests.etl.lakes.servers import missing
from tests.processes import die_with_parent
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
    tmp_path_factory: pytest.TempPathFactory, alerts: Alerts, airflow_environment: Path
) -> AirflowSetup:
    """An Airflow whose jobs never run: without a log and a cluster."""
    setup = prepare_airflow(tmp_path_factory.mktemp("airflow"), alerts.url)
    airflow(airflow_environment, setup.home, "db", "migrate")
    return setup


@pytest.fixture(scope="package")
def airflow_with_cluster(
    airflow_setup: AirflowSetup, airflow_cluster: Cluster, spark: SparkSession
) -> AirflowSetup:
    """The same Airflow, whose lake now has a raw log, and whose jobs run on a cluster."""
    airflow_setup.use_cluster(airflow_cluster)
    generate_log(spark, airflow_setup)
    return airflow_setup


@pytest.fixture(scope="package")
def run_airflow_process(airflow_setup: AirflowSetup, airflow_environment: Path) -> Callable[..., Any]:
    """Runs a script of airflow_scripts as a process of Airflow's interpreter; returns the JSON it printed last."""

    def run_script(script: str, *words: str) -> Any:
        done = subprocess.run(
            [airflow_environment / "bin/python", SCRIPTS / f"{script}.py", *words],
            env={**airflow_setup.home.environment(), "PYTHONPATH": str(airflow_setup.home.dags)},
            cwd=airflow_setup.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run_script


@pytest.fixture(scope="package")
def run_airflow_script(
    airflow_setup: AirflowSetup, airflow_environment: Path
) -> Iterator[Callable[..., Any]]:
    """Runs a script in a fork of one process that has imported Airflow; returns the JSON it printed last."""
    variables = {**airflow_setup.home.environment(), "PYTHONPATH": str(airflow_setup.home.dags)}
    numbers = itertools.count()
    server = subprocess.Popen(
        [airflow_environment / "bin/python", SCRIPTS / "fork_scripts.py"],
        env=variables,
        cwd=airflow_setup.folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,
    )
    assert server.stdin is not None
    assert server.stdout is not None

    def run_script(script: str, *words: str, **environment: str) -> Any:
        assert server.stdin is not None
        assert server.stdout is not None
        output = airflow_setup.folder / f"{script}-{next(numbers)}.out"
        request = {
            "script": str(SCRIPTS / f"{script}.py"),
            "words": words,
            "environment": {**variables, **environment},
            "folder": str(airflow_setup.folder),
            "output": str(output),
        }
        print(json.dumps(request), file=server.stdin, flush=True)
        code = server.stdout.readline().strip()
        printed = output.read_text(errors="replace") if output.exists() else ""
        assert code == "0", printed[-6000:]
        return json.loads(printed.splitlines()[-1])

    yield run_script
    server.stdin.close()
    server.wait()


@pytest.fixture(scope="package")
def trained(run_airflow_process: Callable[..., Any], airflow_with_cluster: AirflowSetup) -> dict[str, Any]:
    """Task states by DAG after a training and a daily run of TRAINED by dag.test().

    The gate promotes the model.

    Only on this day a retriever makes candidates, and lists are delivered.
    """
    retrieval = "candidates.sources=[{source: retrieval, n: 60, model: ../models/two_tower_small.yaml}]"
    sink = f"deliver.sinks=[{{kind: json_lines, name: files, path: {airflow_with_cluster.delivered}}}]"
    conf = json.dumps({"run_date": TRAINED, "set": [retrieval, sink]})
    states: dict[str, Any] = run_airflow_process(
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
    """The command lines of the processes that have this Airflow's folder in their environment.

    The process of `run_airflow_script`, which lasts as long as the tests of this folder, is left out.
    """
    commands = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("AIRFLOW_HOME") == str(airflow_setup.home.folder):
                commands.append(" ".join(process.cmdline()))
    return [command for command in commands if not command.endswith("/fork_scripts.py")]
