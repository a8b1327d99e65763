"""Executes tasks with the runner `livy` against a Livy on loopback; prints what happened.

The arguments are a file with the Variable of each case, and interpreter and PYTHONPATH of the batches.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

from airflow.sdk.execution_time.timeout import TimeoutPosix
from livy_api import Livy

from airflow_dags import sensors
from airflow_dags.dataset import DEFAULT_DATASET
from airflow_dags.submit import stage

STEP = {"name": "report", "job": "report", "run_date": "2026-01-04", "overrides": ["score.k=3"]}


class Ti:
    def xcom_pull(self, task_ids: str) -> dict:
        return {"night": [STEP]}


class Run:
    partition_key = "2026-01-04"


class Store(dict):
    """The state of a task that Airflow keeps between attempts."""

    set = dict.__setitem__


livy = Livy(sys.argv[2], {"PATH": os.environ["PATH"], "PYTHONPATH": sys.argv[3]})
os.environ["AIRFLOW_CONN_LIVY_DEFAULT"] = json.dumps(
    {"conn_type": "livy", "host": "127.0.0.1", "port": livy.port}
)
os.environ["AIRFLOW_CONN_SPARK_DEFAULT"] = ""


def executed(task, context):
    """Class and text of the error, and the result, of a task."""
    try:
        poked = task.poke(context) if isinstance(task, sensors.RawLogSensor) else None
        return ["", "", poked.xcom_value if poked else task.execute(context)]
    except BaseException as error:
        if type(error).__name__ == "AirflowTaskTimeout":
            task.on_kill()  # as Airflow's task runner does
        return [type(error).__name__, str(error), None]


def when_running(act):
    while not any(batch.lines["err"] or batch.process.poll() is None for batch in livy.batches.values()):
        time.sleep(0.05)
    act()


results = {}
for name, variable in json.loads(Path(sys.argv[1]).read_text()).items():
    os.environ["AIRFLOW_VAR_NIGHTRANK"] = json.dumps(variable)
    posted, store = len(livy.posted), Store()
    context = {"ti": Ti(), "params": {"set": []}, "dag_run": Run, "task_state_store": store}
    if name == "plan":
        _, task = sensors.first_sensors(DEFAULT_DATASET, "weekly_training", yields=False)
    else:
        task = stage("report")
    if name == "killed":
        threading.Thread(target=when_running, args=[task.on_kill]).start()
    if name in ("too slow", "worker lost"):
        kill, task.on_kill = task.on_kill, (lambda: None) if name == "worker lost" else task.on_kill
        with TimeoutPosix(2):
            outcome = executed(task, context)
        task.on_kill = kill
    else:
        outcome = executed(task, context)
    left = [*livy.batches]
    if name == "worker lost":  # the next attempt
        variable["set"] = ["end=0"]
        os.environ["AIRFLOW_VAR_NIGHTRANK"] = json.dumps(variable)
        outcome = executed(stage("report"), context)
    results[name] = {
        "outcome": outcome,
        "posted": livy.posted[posted:],
        "left": left,
        "last": [*livy.batches],
    }
    for batch in livy.batches.values():
        batch.end()
    livy.batches.clear()
print(json.dumps(results))
