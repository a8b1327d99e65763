"""Prints the import errors of the DagBag, and what an operator sees of each DAG."""

import json
from collections import defaultdict
from types import SimpleNamespace
from unittest.mock import patch

import pendulum
from airflow.configuration import conf
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization

from airflow_dags.alerts import late
from airflow_dags.daily_recommendations import create_daily
from airflow_dags.dataset import Dataset
from airflow_dags.dates import days_between, run_date_of
from airflow_dags.weekly_training import create_weekly


class Run:
    partition_key = "2026-03-01"


def result_or_error(function, *values):
    """The result of a function, or the class and the text of its error."""
    try:
        return function(*values)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


class Event:
    """An event of an asset that a task updates."""

    extra = None

    def __init__(self):
        self.partition_keys = []

    def add_partitions(self, key):
        self.partition_keys.append(key)


class Ti:
    def __init__(self, run_date):
        self.run_date = run_date

    def xcom_pull(self, task_ids):
        return dict.fromkeys(("model_version", "champion", "users", "digest"), 1) | {
            "run_date": self.run_date
        }


def scheduled_runs(create, cron, timezone, after):
    """Local time, run date and other keys of the asset of lists, of three scheduled runs after a time."""
    dag = create(Dataset("books", daily_cron=cron, weekly_cron=cron, timezone=timezone))
    table = DagSerialization.from_dict(DagSerialization.to_dict(dag)).timetable
    runs, at = [], pendulum.parse(after)
    for _ in range(3):
        at = table._get_next(at)
        date, key = table._get_partition_info(at)
        run = SimpleNamespace(run_type="scheduled", run_after=at, partition_date=date, partition_key=key)
        context = {"params": {"run_date": None}, "dag_run": run}
        day = run_date_of(context, dag.get_task("raw_log").days_before_key)
        keys = []
        if dag.has_task("announce"):
            outlets = defaultdict(Event)
            dag.get_task("announce").python_callable(
                "books", ti=Ti(day), dag_run=run, outlet_events=outlets, inlet_events=defaultdict(list)
            )
            keys = [key for event in outlets.values() for key in event.partition_keys]
        runs.append([at.in_timezone(timezone).strftime("%m-%d %H:%M"), day, keys])
    return runs


SCHEDULED = {
    name: {
        "gap": scheduled_runs(create, "0 2 * * *", "Europe/Berlin", "2026-03-27T12:00:00Z"),
        "other gap": scheduled_runs(create, "30 2 * * *", "America/New_York", "2026-03-06T12:00:00Z"),
        "no gap": scheduled_runs(create, "0 5 * * *", "Europe/Berlin", "2026-03-27T12:00:00Z"),
        "winter": scheduled_runs(create, "30 2 * * *", "Europe/Berlin", "2026-10-23T12:00:00Z"),
    }
    for name, create in (("daily", create_daily), ("weekly", create_weekly))
}
DAYS = {
    "param": result_or_error(run_date_of, {"params": {"run_date": "2026-01-04"}, "dag_run": Run}, 1),
    "key": result_or_error(run_date_of, {"params": {"run_date": None}, "dag_run": Run}),
    "day before the key": result_or_error(run_date_of, {"params": {"run_date": None}, "dag_run": Run}, 1),
    "no date": result_or_error(run_date_of, {"params": {"run_date": "2026-02-30"}, "dag_run": Run}),
    "other form": result_or_error(run_date_of, {"params": {"run_date": "20260104"}, "dag_run": Run}),
    "days": result_or_error(days_between, "2026-02-27", "2026-03-01"),
    "backwards": result_or_error(days_between, "2026-03-01", "2026-02-27"),
}


def late_alerts(context):
    """The kinds of the alerts that are sent at the deadline of a run."""
    kinds = []
    with patch("airflow_dags.alerts.tell", lambda kind, *_, **__: kinds.append(kind)):
        late("daily_recommendations", 6, **context)
    return kinds


LATE = {
    state: late_alerts({"context": {"dag_run": {"state": state}}})
    for state in ("running", "queued", "failed", "success")
}
bag = DagBag(conf.get("core", "dags_folder"))
described = {
    name: {
        "order": [task.task_id for task in dag.topological_sort()],
        "below": {task.task_id: sorted(task.downstream_task_ids) for task in dag.tasks},
        "owners": sorted({task.owner for task in dag.tasks}),
        "retries": {task.task_id: task.retries for task in dag.tasks},
        "pools": {task.task_id: task.pool for task in dag.tasks},
        "timeouts": {task.task_id: task.execution_timeout is not None for task in dag.tasks},
        "callbacks": all(task.on_failure_callback for task in dag.tasks),
        "tags": sorted(dag.tags),
        "doc": dag.doc_md,
        "runs": dag.max_active_runs,
        "catchup": dag.catchup,
        "deadline": bool(dag.deadline),
        "params": sorted(dag.params),
    }
    for name, dag in bag.dags.items()
}
print(
    json.dumps(
        {
            "errors": bag.import_errors,
            "dags": described,
            "days": DAYS,
            "scheduled": SCHEDULED,
            "late": {**LATE, "no context": late_alerts({})},
        }
    )
)
