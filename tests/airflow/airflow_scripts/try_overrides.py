"""Prints the errors of a stage, the sensor of the raw log and a back-fill for values of the Param `set`.

The argument is JSON: name of a case → [set, param_keys or null]. A job that starts ends at once with exit
code 4.
"""

import json
import os
import sys
from pathlib import Path

from airflow_dags.backfill_recommendations import days
from airflow_dags.dataset import DEFAULT_DATASET
from airflow_dags.sensors import first_sensors
from airflow_dags.submit import stage

STEP = {"name": "report", "job": "report", "run_date": "2026-01-04", "overrides": ["lake=/from/the/plan"]}
PLANNED_ENDS = Path(os.environ["PLANNED_ENDS"])


class Ti:
    def xcom_pull(self, task_ids: str) -> dict:
        return {"night": [STEP]}


class Run:
    partition_key = "2026-01-04"


def error_of(function, *values, **named):
    """The class and the text of the error that a function raises."""
    for job in ("report", "plan_night"):
        (PLANNED_ENDS / job).write_text("4\n")
    try:
        return ["", repr(function(*values, **named))]
    except Exception as error:
        return [type(error).__name__, str(error)]


variable = json.loads(os.environ["AIRFLOW_VAR_NIGHTRANK"])
variable.pop("param_keys", None)
errors = {}
for name, (overrides, keys) in json.loads(sys.argv[1]).items():
    variable_keys = {} if keys is None else {"param_keys": keys}
    os.environ["AIRFLOW_VAR_NIGHTRANK"] = json.dumps({**variable, **variable_keys})
    params = {"set": overrides, "when_published": "rerun", "from": "2026-01-04", "to": "2026-01-04"}
    context = {"ti": Ti(), "params": params, "dag_run": Run}
    _, sensor = first_sensors(DEFAULT_DATASET, "weekly_training", yields=False)
    errors[name] = {
        "stage": error_of(stage("report").execute, context),
        "sensor": error_of(sensor.poke, context),
        "backfill": error_of(days.function, "nightrank", params=params, run_id="run"),
    }
for job in ("report", "plan_night"):
    (PLANNED_ENDS / job).write_text("")
print(json.dumps(errors))
