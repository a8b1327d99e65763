"""### The lists of past days, one after another

Runs `daily_recommendations` for each day from `from` to `to`. The run of a day starts when the run of the day
before has ended, because it needs the lists of that day: it measures them, and compares its new lists with
them. If a day fails, the later days still run. Correct the cause of the failure, then clear the task of the
failed day: all tasks of this day run again.

| | |
|---|---|
| days | Params `from` and `to`, both included |
| published days | Param `when_published`: `skip` skips such days, `rerun` repeats stages with new inputs |
| scheduled runs | may have to wait, because `daily_recommendations` has only one run at a time |
"""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Param, task

from airflow_dags.alerts import task_failed
from airflow_dags.daily_recommendations import DAG_ID as DAILY
from airflow_dags.dataset import Dataset
from airflow_dags.dates import days_between
from airflow_dags.settings import read_settings
from airflow_dags.submit import asked_overrides

DAG_ID = "backfill_recommendations"
_LOOK_EVERY_S = 10


@task
def days(variable: str, params: Any = None, run_id: Any = None) -> list[dict[str, Any]]:
    """Returns one mapping per day: the run id and the configuration of a run of daily_recommendations.

    Args:
        variable: the name of the Airflow Variable of the dataset.
        params: the Params of the run.
        run_id: the id of the run.
    """
    # If the Param `set` is wrong, the task fails here, before the run of the first day starts.
    asked = asked_overrides(params, read_settings(variable))
    options = {"when_published": params["when_published"], "set": list(asked)}
    return [
        {"trigger_run_id": f"{run_id}__{day}", "conf": {"run_date": day, **options}}
        for day in days_between(params["from"], params["to"])
    ]


def create_backfill(dataset: Dataset) -> DAG:
    """Creates the DAG `backfill_recommendations` of a dataset."""
    with DAG(
        dataset.id_of(DAG_ID),
        description="Makes the lists of past days, one after another",
        doc_md=__doc__,
        schedule=None,
        max_active_runs=1,
        tags=["nightrank", "recommendations"],
        params={
            "from": Param(type="string", format="date", description="The first day, YYYY-MM-DD"),
            "to": Param(type="string", format="date", description="The last day, YYYY-MM-DD"),
            "when_published": Param(
                "skip", enum=["skip", "rerun"], description="What to do with days that already have lists"
            ),
            "set": Param(
                [], type="array", items={"type": "string"}, description="--set values of these runs"
            ),
        },
        default_args={"owner": "nightrank", "retries": 0, "on_failure_callback": task_failed},
    ) as dag:
        TriggerDagRunOperator.partial(
            task_id="night",
            trigger_dag_id=dataset.id_of(DAILY),
            logical_date=None,  # logical dates must be unique, so a run has none; its Param gives the day
            reset_dag_run=True,  # a cleared task runs its day again: the run of this day already exists
            wait_for_completion=True,
            fail_when_dag_is_paused=True,  # a run of a paused DAG would never start
            poke_interval=_LOOK_EVERY_S,
            max_active_tis_per_dagrun=1,
            map_index_template="{{ task.conf['run_date'] }}",
        ).expand_kwargs(days(dataset.variable))
    return dag
