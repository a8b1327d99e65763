"""Executes the task of `report` with each Variable in the file of the argument; prints errors and logs."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from airflow_dags import node_check, submit, submit_runner
from airflow_dags.commands import Call
from airflow_dags.settings import Settings

STEP = {"name": "report", "job": "report", "run_date": "2026-01-04", "overrides": []}


class Ti:
    def xcom_pull(self, task_ids: str) -> dict:
        return {"night": [STEP]}


messages: list[str] = []


class Logger:
    """Keeps what is logged, and logs it as the task would."""

    def __init__(self, log: Any) -> None:
        self._log = log

    def info(self, message: str, *values: object) -> None:
        messages.append(message % values)
        self._log.info(message, *values)


def checked(call: Call, settings: Settings, log: Any) -> None:
    node_check.check_node(call, settings, Logger(log))


submit_runner.check_node = checked
results = {}
for name, variable in json.loads(Path(sys.argv[1]).read_text()).items():
    planned = Path(os.environ["PLANNED_ENDS"]) / "report"
    planned.write_text("4\n")  # the job itself would end with 4
    os.environ["AIRFLOW_VAR_NIGHTRANK"] = json.dumps(variable)
    task = submit.stage("report")
    messages.clear()
    try:
        task.execute({"ti": Ti(), "params": {}})
        error = ["", ""]
    except Exception as raised:
        error = [type(raised).__name__, str(raised)]
    results[name] = [*error, not planned.read_text(), "\n".join(messages)]
    planned.write_text("")
print(json.dumps(results))
