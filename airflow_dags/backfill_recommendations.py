"""### The lists of past days, one after the other

Triggers a run of `daily_recommendations` for each day from `from` to `to`, and waits for it before the next: a day is compared with
the one before, and measures its lists. A day that fails stays red and does not hold up those behind it; when its cause is
mended, clear its box.

| | |
|---|---|
| days | Params `from` and `to`, both included |
| published days | Param `when_published`: `skip` leaves them, `rerun` makes them again where their inputs changed |
| beside the schedule | `daily_recommendations` has one run at a time: the back-fill takes turns with it |
"""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Param, task

from airflow_dags.alerts import task_failed
from airflow_dags.dates import days_between
from airflow_dags.settings import read_settings
from airflow_dags.submit import asked_overrides

_LOOK_EVERY_S = 10


@task
def days(params: Any = None, run_id: Any = None) -> list[dict[str, Any]]:
    """One run of the daily DAG a day: its id and what it is given."""
    asked = asked_overrides(params, read_settings())  # before the first day, not in each
    given = {"when_published": params["when_published"], "set": list(asked)}
    return [
        {"trigger_run_id": f"{run_id}__{day}", "conf": {"run_date": day, **given}}
        for day in days_between(params["from"], params["to"])
    ]


with DAG(
    "backfill_recommendations",
    description="Past days, one after the other",
    doc_md=__doc__,
    schedule=None,
    max_active_runs=1,
    tags=["nightrank", "recommendations"],
    params={
        "from": Param(type="string", format="date", description="The first day, YYYY-MM-DD"),
        "to": Param(type="string", format="date", description="The last day, YYYY-MM-DD"),
        "when_published": Param(
            "skip", enum=["skip", "rerun"], description="What to do with days whose lists are published"
        ),
        "set": Param([], type="array", items={"type": "string"}, description="--set values of these runs"),
    },
    default_args={"owner": "nightrank", "retries": 0, "on_failure_callback": task_failed},
) as dag:
    TriggerDagRunOperator.partial(
        task_id="night",
        trigger_dag_id="daily_recommendations",
        logical_date=None,  # days are told by the Param, and two runs must not share a logical date
        wait_for_completion=True,
        fail_when_dag_is_paused=True,  # a run that nobody schedules would be waited for without end
        poke_interval=_LOOK_EVERY_S,
        max_active_tis_per_dagrun=1,
        map_index_template="{{ task.conf['run_date'] }}",
    ).expand_kwargs(days())
