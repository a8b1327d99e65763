"""MLflow in a process of its own: the same entries, warnings in the job's log, and no process that is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from mlflow.tracking import MlflowClient

from local_airflow.home import free_port
from storage.paths import LakePaths
from tests.processes import ROOT, environment, wait_until_gone

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

# A job that writes to MLflow from another process: it prints the id of this process first.
JOB = """
import logging, os, signal, sys, time
sys.path.insert(0, os.getcwd())
from storage.paths import LakePaths
from tests.training.test_registry import description
from training.registry import mlflow_mirror, mlflow_process
logging.basicConfig(level=logging.INFO)
lake, kill = LakePaths(sys.argv[1]), sys.argv[2]
mlflow_process.start()
child = mlflow_process._process.pid
print(child, flush=True)
mlflow_mirror.prepare(lake)
if kill == "the process":
    os.kill(child, signal.SIGKILL)
for version in ("v1", "v1", "v2"):
    mlflow_mirror.track_training(lake, description(version), {"train": {"seed": 3}})
mlflow_mirror.set_aliases(lake, "m", {"champion": "v1"})
print("mlflow" in sys.modules, flush=True)
if kill == "the job":
    time.sleep(600)
"""


def start(lake: Path, kill: str, uri: str | None = None) -> subprocess.Popen[str]:
    variables = {name: value for name, value in environment().items() if name != "MLFLOW_TRACKING_URI"}
    variables |= {"PYTHONPATH": str(ROOT), "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    variables |= {"MLFLOW_TRACKING_URI": uri} if uri else {}
    return subprocess.Popen(
        [sys.executable, "-c", JOB, str(lake), kill],
        cwd=ROOT,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def assert_entries(folder: Path) -> None:
    uri = LakePaths(str(folder)).mlflow_uri
    client = MlflowClient(uri, uri)
    assert client.get_model_version_by_alias("m", "champion").tags["nightrank.version"] == "v1"
    assert client.get_model_version_by_alias("m", "challenger").tags["nightrank.version"] == "v2"
    assert len(client.search_model_versions("name='m'")) == 2
    run = client.get_run(client.get_model_version_by_alias("m", "champion").run_id or "")
    assert run.data.params == {"train.seed": "3"}


@pytest.mark.parametrize("kill", ["nobody", "the process"])
def test_the_entries_are_those_of_the_job_itself(tmp_path: Path, kill: str) -> None:
    """If the process was killed, the job writes the entries itself."""
    job = start(tmp_path, kill)
    output, errors = job.communicate()
    assert job.returncode == 0, errors
    child, imported = output.split()
    assert imported == str(kill == "the process")
    assert "MLflow was not updated" not in errors
    assert_entries(tmp_path)
    wait_until_gone([int(child)])


def test_a_store_that_cannot_be_reached_is_a_warning_in_the_log_of_the_job(tmp_path: Path) -> None:
    job = start(tmp_path, "nobody", f"http://127.0.0.1:{free_port()}")
    _, errors = job.communicate()
    assert job.returncode == 0
    assert errors.count("MLflow was not updated, but the registry in the lake was") >= 4
    assert "Traceback" not in errors


def test_the_process_ends_with_a_killed_job(tmp_path: Path) -> None:
    job = start(tmp_path, "the job")
    assert job.stdout is not None
    child = int(job.stdout.readline())
    assert job.stdout.readline() == "False\n"
    assert psutil.pid_exists(child)
    os.kill(job.pid, signal.SIGKILL)
    job.wait()
    wait_until_gone([child])
    assert_entries(tmp_path)
    job.stdout.close()
    assert job.stderr is not None
    job.stderr.close()
