"""Prints the import errors of the DagBag, and what an operator sees of each DAG."""

import json

from airflow.configuration import conf
from airflow.dag_processing.dagbag import DagBag

from airflow_dags.dates import days_between, run_date_of


class Run:
    partition_key = "2026-03-01"


def result_or_error(function, *values):
    """The result of a function, or the class and the text of its error."""
    try:
        return function(*values)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


DAYS = {
    "param": result_or_error(run_date_of, {"params": {"run_date": "2026-01-04"}, "dag_run": Run}, 1),
    "key": result_or_error(run_date_of, {"params": {"run_date": None}, "dag_run": Run}),
    "day before the key": result_or_error(run_date_of, {"params": {"run_date": None}, "dag_run": Run}, 1),
    "no date": result_or_error(run_date_of, {"params": {"run_date": "2026-02-30"}, "dag_run": Run}),
    "other form": result_or_error(run_date_of, {"params": {"run_date": "20260104"}, "dag_run": Run}),
    "days": result_or_error(days_between, "2026-02-27", "2026-03-01"),
    "backwards": result_or_error(days_between, "2026-03-01", "2026-02-27"),
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
print(json.dumps({"errors": bag.import_errors, "dags": described, "days": DAYS}))
