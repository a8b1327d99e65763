"""Executes tasks under several values of the Variable, and without connection or plan; prints their errors."""

import json
import os
import sys

from airflow.sdk import DAG

from airflow_dags.daily_recommendations import create_daily
from airflow_dags.dataset import DEFAULT_DATASET
from airflow_dags.submit import stage
from airflow_dags.weekly_training import create_weekly

STEP = {"name": "report", "job": "report", "run_date": "2026-01-04", "overrides": []}


class Ti:
    def xcom_pull(self, task_ids: str) -> dict:
        return {"night": [STEP]}


class NoResults:
    """A run whose first tasks were marked as success: they have no XComs."""

    dag_id = "weekly_training"

    def xcom_pull(self, task_ids: str) -> None:
        return None


def error_of(function, *values, **named):
    """The class and the text of the error that a function raises."""
    try:
        function(*values, **named)
        return ["", ""]
    except Exception as error:
        return [type(error).__name__, str(error)]


def errors_without_results(dag: DAG) -> dict:
    """The errors of all tasks of a DAG that run jobs or read the summaries of jobs, by task."""
    errors = {}
    for task in dag.tasks:
        if hasattr(task, "step"):
            errors[task.task_id] = error_of(task.execute, {"ti": NoResults(), "params": {}})
        elif task.task_id == "promote":
            errors[task.task_id] = error_of(task.python_callable, "default", ti=NoResults())
        elif task.task_id == "notify":
            errors[task.task_id] = error_of(task.python_callable, ti=NoResults())
    return errors


errors = {}
connection = os.environ.pop("AIRFLOW_CONN_SPARK_DEFAULT")
for name, variable in json.loads(sys.argv[1]).items():
    os.environ.pop("AIRFLOW_VAR_NIGHTRANK", None)
    if variable is not None:
        os.environ["AIRFLOW_VAR_NIGHTRANK"] = variable if isinstance(variable, str) else json.dumps(variable)
    if name != "missing connection":
        os.environ["AIRFLOW_CONN_SPARK_DEFAULT"] = connection
    errors[name] = error_of(stage("report").execute, {"ti": Ti(), "params": {}})
dags = [create(DEFAULT_DATASET) for create in (create_daily, create_weekly)]
without_results = {dag.dag_id: errors_without_results(dag) for dag in dags}
print(json.dumps({"settings": errors, "without_results": without_results}))
