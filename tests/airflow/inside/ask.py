"""Gives tasks the Params `set` of the arguments (name → [set, param_keys or null]); prints what a stage, the sensor that begins a run, and
a back-fill raised. A job that is started ends at once with exit code 4.
"""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

from airflow_dags.backfill_recommendations import days
from airflow_dags.sensors import begin
from airflow_dags.submit import stage

STEP = {"name": "report", "job": "report", "run_date": "2026-01-04", "overrides": ["lake=/from/the/plan"]}
FATES = Path(os.environ["FATES"])


class Ti:
    def xcom_pull(self, task_ids: str) -> dict:
        return {"night": [STEP]}


class Run:
    partition_key = "2026-01-04"


def said(function, *values, **named):
    """The class and the text of what a function raises."""
    for job in ("report", "plan_night"):
        (FATES / job).write_text("4\n")
    try:
        return ["", repr(function(*values, **named))]
    except Exception as error:
        return [type(error).__name__, str(error)]


variable = json.loads(os.environ["AIRFLOW_VAR_NIGHTRANK"])
variable.pop("param_keys", None)
found = {}
for name, (asked, keys) in json.loads(sys.argv[1]).items():
    own = {} if keys is None else {"param_keys": keys}
    os.environ["AIRFLOW_VAR_NIGHTRANK"] = json.dumps({**variable, **own})
    params = {"set": asked, "when_published": "rerun", "from": "2026-01-04", "to": "2026-01-04"}
    context = {"ti": Ti(), "params": params, "dag_run": Run}
    _, sensor = begin("weekly_training", yields=False, log_timeout=timedelta(hours=1))
    found[name] = {
        "stage": said(stage("report").execute, context),
        "sensor": said(sensor.poke, context),
        "backfill": said(days.function, params=params, run_id="run"),
    }
for job in ("report", "plan_night"):
    (FATES / job).write_text("")
print(json.dumps(found))
