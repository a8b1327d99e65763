"""Executes a task under several values of the Variable, and without a connection; prints its errors."""

import json
import os
import sys

from airflow_dags.submit import stage

STEP = {"name": "report", "job": "report", "run_date": "2026-01-04", "overrides": []}


class Ti:
    def xcom_pull(self, task_ids: str) -> dict:
        return {"night": [STEP]}


errors = {}
connection = os.environ.pop("AIRFLOW_CONN_SPARK_DEFAULT")
for name, variable in json.loads(sys.argv[1]).items():
    os.environ.pop("AIRFLOW_VAR_NIGHTRANK", None)
    if variable is not None:
        os.environ["AIRFLOW_VAR_NIGHTRANK"] = json.dumps(variable)
    if name != "missing connection":
        os.environ["AIRFLOW_CONN_SPARK_DEFAULT"] = connection
    try:
        stage("report").execute({"ti": Ti(), "params": {}})
        errors[name] = ["", ""]
    except Exception as error:
        errors[name] = [type(error).__name__, str(error)]
print(json.dumps(errors))
