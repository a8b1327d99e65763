"""A DAG whose run is late at once: it ends when the file appears that AIRFLOW_VAR_LATE_NIGHT names."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, DeadlineAlert, DeadlineReference, SyncCallback, Variable, task

from airflow_dags.alerts import late


@task
def wait() -> None:
    end = time.monotonic() + 120
    while not Path(Variable.get("late_night")).exists():
        if time.monotonic() > end:
            raise TimeoutError("nobody was told")
        time.sleep(0.2)


with DAG(
    "late_night",
    schedule=None,
    deadline=DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(seconds=1),
        callback=SyncCallback(late, {"dag": "late_night", "hours": 0}),
    ),
):
    wait()
