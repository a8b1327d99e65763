"""Executes tasks whose spark-submit ends as the arguments say (exit codes, `kill`); prints their errors."""

import json
import os
import sys
from pathlib import Path

from airflow_dags import submit

STEP = {"name": "report", "job": "report", "run_date": "2026-01-04", "overrides": ["score.k=3"]}


class Ti:
    def xcom_pull(self, task_ids: str) -> dict:
        assert task_ids == "raw_log"
        return {"night": [STEP]}


errors = {}
for end in sys.argv[1:]:
    (Path(os.environ["PLANNED_ENDS"]) / "report").write_text(f"{end}\n")
    task = submit.stage("report")
    try:
        task.execute({"ti": Ti(), "params": {"set": ["score.k=4"]}})
        errors[end] = ["", ""]
    except Exception as error:
        errors[end] = [type(error).__name__, str(error)]
print(json.dumps(errors))
