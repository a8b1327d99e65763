"""Prints DAGs and import errors of a DAGs folder with several datasets, and a stage's error by dataset.

The argument is a day and time, after which the next scheduled run of each DAG is described. No Variable is read while the files are parsed.
"""

import json
import os
import sys
from datetime import datetime
from pathlib import Path

import pendulum
from airflow.configuration import conf
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import Variable
from airflow.serialization.serialized_objects import DagSerialization

STEP = {"name": "report", "job": "report", "run_date": "2026-01-04", "overrides": []}


class Ti:
    def xcom_pull(self, task_ids: str) -> dict:
        return {"night": [STEP]}


def key_of(dag):
    """The partition key of the first scheduled run after the time of the argument."""
    timetable = DagSerialization.from_dict(DagSerialization.to_dict(dag)).timetable
    if not timetable.partitioned:
        return None
    after = pendulum.instance(datetime.fromisoformat(sys.argv[1]))
    return timetable._get_partition_info(timetable._get_next(after))[1]


def described(dag):
    tasks = {task.task_id: task for task in dag.tasks}
    return {
        "file": Path(dag.fileloc).name,
        "cron": getattr(dag.timetable, "expression", None) or dag.timetable.__dict__.get("cron"),
        "key": key_of(dag),
        "retries": sorted({task.retries for task in dag.tasks}),
        "pools": sorted({task.pool for task in dag.tasks} - {"default_pool"}),
        "hours": {
            name: task.execution_timeout.total_seconds() / 3600
            for name, task in tasks.items()
            if task.execution_timeout
        },
        "options": {name: list(task.options) for name, task in tasks.items() if getattr(task, "options", ())},
        "last": sorted(task.task_id for task in dag.leaves),
        "log_wait_hours": tasks["raw_log"].timeout / 3600 if "raw_log" in tasks else None,
        "wait_hours": tasks["wait_for_other_dag"].timeout / 3600 if "wait_for_other_dag" in tasks else None,
        "waits_for": getattr(tasks.get("wait_for_other_dag"), "other", None),
        "starts": tasks["night"].partial_kwargs["trigger_dag_id"] if "night" in tasks else None,
        "assets": sorted({asset.name for task in dag.tasks for asset in (*task.outlets, *task.inlets)}),
        "late": dag.deadline[0].interval.total_seconds() / 3600 if dag.deadline else None,
    }


def refuse(*_, **__):
    raise RuntimeError("a Variable was read while a DAG file was parsed")


def error_of(dag):
    """The error of the task `report`, whose job ends with exit code 4."""
    (Path(os.environ["PLANNED_ENDS"]) / "report").write_text("4\n")
    try:
        dag.get_task("report").execute({"ti": Ti(), "params": {}})
    except Exception as error:
        return [type(error).__name__, str(error)]
    finally:
        (Path(os.environ["PLANNED_ENDS"]) / "report").write_text("")


get, Variable.get = Variable.get, refuse
bag = DagBag(conf.get("core", "dags_folder"))
Variable.get = get
daily = [dag for name, dag in bag.dags.items() if name.startswith("daily_recommendations")]
print(
    json.dumps(
        {
            "errors": {Path(path).name: text for path, text in bag.import_errors.items()},
            "dags": {name: described(dag) for name, dag in bag.dags.items()},
            "stages": {dag.dag_id: error_of(dag) for dag in daily},
        },
        default=str,
    )
)
