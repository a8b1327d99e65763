"""A DAG whose runs are late at once. A run ends when the file exists that AIRFLOW_VAR_LATE_RUN names."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, DeadlineAlert, DeadlineReference, SyncCallback, Variable, task

from airflow_dags.alerts import late


@task
def wait() -> None:
    end = time.monotonic() + 120
    while not Path(Variable.get("late_run")).exists():
        if time.monotonic() > end:
            raise TimeoutError("no alert was sent")
        time.sleep(0.2)


with DAG(
    "late_run",
    schedule=None,
    deadline=DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(seconds=1),
        callback=SyncCallback(late, {"dag": "late_run", "hours": 0}),
    ),
):
    wait()
