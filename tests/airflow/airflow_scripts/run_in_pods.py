"""Executes tasks with the runner `kubernetes` against a Kubernetes API on loopback; prints what happened.

The arguments are a file with the Variable of each case, and the folder of the jobs that the pods run.
"""

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path

from airflow.sdk.execution_time.timeout import TimeoutPosix
from kubernetes_api import KubernetesApi

from airflow_dags import sensors
from airflow_dags.dataset import DEFAULT_DATASET
from airflow_dags.submit import stage

STEP = {"name": "report", "job": "report", "run_date": "2026-01-04", "overrides": ["score.k=3"]}


class Ti:
    dag_id, task_id, map_index, try_number = "daily_recommendations", "report", -1, 1

    def xcom_pull(self, task_ids: str) -> dict:
        return {"night": [STEP]}

    def xcom_push(self, key: str, value: object) -> None:
        pass


class Dag:
    parent_dag = None


class Run:
    partition_key = "2026-01-04"


context = {"ti": Ti(), "run_id": "manual", "dag": Dag, "params": {"set": []}, "dag_run": Run}


def executed(task):
    """Class and text of the error, and the result, of a task."""
    try:
        poked = task.poke(context) if isinstance(task, sensors.RawLogSensor) else None
        return ["", "", poked.xcom_value if poked else task.execute(context)]
    except BaseException as error:
        if type(error).__name__ == "AirflowTaskTimeout":
            task.on_kill()  # as Airflow's task runner does
        return [type(error).__name__, str(error), None]


def wait_until_running():
    while not any(pod.lines for pod in api.pods.values()):
        time.sleep(0.05)


def kill_when_running(task):
    """Kills a task as Airflow does, when its pod has begun to log."""
    wait_until_running()
    task.on_kill()


def lose_worker(task):
    """Executes a task in a process that is killed when the pod has begun to log."""
    worker = os.fork()
    if worker == 0:
        executed(task)
        os._exit(0)
    wait_until_running()
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)


def start_api():
    """Starts an API for the cases of this process."""
    global api
    api = KubernetesApi()
    os.environ["AIRFLOW_CONN_KUBERNETES_DEFAULT"] = api.connection()
    os.environ["AIRFLOW_CONN_OF_NOBODY"] = api.connection().replace(api.url, "http://127.0.0.1:9")


def run_case(case):
    """Returns the name of a case, and what happened."""
    name, variable = case
    master = variable.pop("master", "local[3]")
    os.environ["AIRFLOW_CONN_SPARK_DEFAULT"] = json.dumps({"conn_type": "spark", "host": master})
    os.environ["AIRFLOW_VAR_NIGHTRANK"] = json.dumps(variable)
    created, deleted = len(api.created), len(api.deleted)
    if name == "plan":
        _, task = sensors.first_sensors(DEFAULT_DATASET, "weekly_training", yields=False)
    else:
        task = stage("report")
    if name == "killed":
        threading.Thread(target=kill_when_running, args=[task]).start()
    if name == "worker lost":
        lose_worker(task)
        task = stage("report")
    if name == "too slow":
        with TimeoutPosix(3):
            outcome = executed(task)
    else:
        outcome = executed(task)
    result = {
        "outcome": outcome,
        "pods": api.created[created:],
        "deleted": len(api.deleted) - deleted,
        "left": [*api.pods],
    }
    for pod in api.pods.values():
        pod.end()
    api.pods.clear()
    return name, result


# Cases mostly wait for their pods, so several processes run them.
with multiprocessing.get_context("fork").Pool(4, start_api) as processes:
    cases = json.loads(Path(sys.argv[1]).read_text()).items()
    print(json.dumps(dict(processes.imap_unordered(run_case, cases))))
