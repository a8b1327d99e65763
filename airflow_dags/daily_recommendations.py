"""### The lists of one day

Waits for the day's raw log, checks the log's quality, builds features and candidates, and makes the lists of
all users. With `score.blend: auto`, a run first chooses how scores are blended, if the champion has no blend
yet. Then it checks and delivers the published lists, and measures the lists of the day before. The report is
written even if a stage fails.

| | |
|---|---|
| day | Param `run_date`; a scheduled run takes the day before the run, which is its partition key |
| a published day | stages with unchanged inputs are skipped; `when_published: skip` skips all stages |
| one value changed for one run | Param `set`, such as `["quality.psi_stop=0.5"]` |
| a failed task | read the end of its log. Exit codes 2 (configuration) and 3 (data) are not retried |
| order | one run at a time, because each day needs the day before; never during `weekly_training` |

See docs/airflow.md for more.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import (
    DAG,
    CronPartitionTimetable,
    DeadlineAlert,
    DeadlineReference,
    Param,
    SyncCallback,
    TriggerRule,
    chain,
    task,
)
from airflow.sdk.exceptions import AirflowSkipException

from airflow_dags.alerts import late, task_failed
from airflow_dags.assets import champion, recommendations
from airflow_dags.dataset import Dataset
from airflow_dags.dates import DATE_PARAM
from airflow_dags.sensors import first_sensors
from airflow_dags.submit import stages_of

DAG_ID = "daily_recommendations"


@task(trigger_rule=TriggerRule.NONE_FAILED)
def announce(
    dataset: str, ti: Any = None, dag_run: Any = None, outlet_events: Any = None, inlet_events: Any = None
) -> Mapping[str, Any]:
    """Updates the Airflow asset that stands for the published lists of a dataset.

    The asset event contains the version of the model that made the lists, and the version of the champion.
    They differ if the lists were made by a refit of the champion. The event also contains the day when the
    champion was promoted. If the run has a partition key, the partition key of the event is the day of the
    lists.
    """
    checked = ti.xcom_pull(task_ids="publish_checks")
    if not checked:
        raise AirflowSkipException("no lists were published")
    lists = {name: checked[name] for name in ("run_date", "model_version", "champion", "users", "digest")}
    promotions = [event.extra for event in inlet_events[champion(Dataset(dataset))]]
    lists["promoted_on"] = next(
        (
            promotion["run_date"]
            for promotion in reversed(promotions)
            if promotion["version"] == lists["champion"]
        ),
        None,
    )
    event = outlet_events[recommendations(Dataset(dataset))]
    event.extra = lists
    # If the clocks went forward at the scheduled time, the partition key is another day (dates.py).
    if dag_run.partition_key not in (None, lists["run_date"]):
        event.add_partitions(lists["run_date"])
    return lists


def create_daily(dataset: Dataset) -> DAG:
    """Creates the DAG `daily_recommendations` of a dataset."""
    dag_id, late_hours = dataset.id_of(DAG_ID), dataset.daily_late_hours
    with DAG(
        dag_id,
        description="Makes the lists of a day from its raw log, checks, delivers and measures them",
        doc_md=__doc__,
        schedule=CronPartitionTimetable(
            dataset.daily_cron, timezone=dataset.timezone, run_offset=-1, key_format="%Y-%m-%d"
        ),
        catchup=False,
        max_active_runs=1,
        tags=["nightrank", "recommendations"],
        params={
            "run_date": DATE_PARAM,
            "when_published": Param(
                "rerun", enum=["rerun", "skip"], description="What to do with a day that already has lists"
            ),
            "set": Param([], type="array", items={"type": "string"}, description="--set values of this run"),
        },
        default_args={"owner": "nightrank", "retries": dataset.retries, "on_failure_callback": task_failed},
        deadline=DeadlineAlert(
            reference=DeadlineReference.DAGRUN_QUEUED_AT,
            interval=timedelta(hours=late_hours),
            callback=SyncCallback(late, {"dag": dag_id, "hours": late_hours}),
        ),
    ) as dag:
        _add_tasks(dataset)
    return dag


def _add_tasks(dataset: Dataset) -> None:
    stage, asset = stages_of(dataset), champion(dataset)
    wait_for_other_dag, raw_log = first_sensors(dataset, "weekly_training", yields=False)
    checks = stage("publish_checks", step="score_daily", job="check_lists", overrides=())
    measure = stage("measure_recommendations")
    report = stage("report", trigger_rule=TriggerRule.ALL_DONE, needs_plan=False)
    # The report also runs after a failure, and may succeed. This task makes the run fail if a stage failed.
    night_is_done = EmptyOperator(task_id="night_is_done", trigger_rule=TriggerRule.NONE_FAILED)
    chain(
        wait_for_other_dag,
        raw_log,
        stage("quality_gate", step="build_features", job="check_quality", overrides=()),
        stage("build_features"),
        stage("learn_blend"),
        stage("build_candidates"),
        stage("score_daily", inlets=[asset]),
        stage("score_rows"),
        checks,
        stage("deliver_recommendations"),
        measure,
        report,
        night_is_done,
    )
    announced = announce.override(outlets=[recommendations(dataset)], inlets=[asset])(dataset.name)
    checks >> announced >> night_is_done
    measure >> night_is_done
