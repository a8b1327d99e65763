"""### Train a challenger and let the gate decide

Fits or extends the workflow on the days up to the run date, and trains a challenger. If the configuration has
the source `retrieval`, the DAG also trains the retriever. The gate then compares the challenger with the
champion on the same raw test day. If the gate promotes the challenger, the asset `nightrank_champion` is
updated, and the new champion makes the lists of the next day. With `train.refit`, the promoted model is first
trained again on the rows of all three splits. If the gate does not promote the challenger, the champion still
serves, and the day's features are built again with the champion's workflow. If the dataset has the option
`prune_keep_days`, the last task deletes old dates and unused versions from the lake.

| | |
|---|---|
| day | Param `run_date`; a scheduled run (by default Sundays at noon, UTC) takes the day before |
| run again | if no input has changed, the model is not trained again, and the decision is the same |
| one value changed for one run | Param `set`, such as `["train.retrain.start=fresh"]` |
| a failed task | read the end of its log. Exit codes 2 (configuration) and 3 (data) are not retried |
| order | never together with `daily_recommendations`: each DAG waits while the other works |

See docs/airflow.md for more. docs/retraining.md says how the gate decides and how to withdraw a bad champion.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

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

from airflow_dags.alerts import late, task_failed, tell
from airflow_dags.assets import champion
from airflow_dags.dataset import Dataset
from airflow_dags.dates import DATE_PARAM
from airflow_dags.sensors import first_sensors
from airflow_dags.submit import JobOperator, result_of, stages_of

DAG_ID = "weekly_training"


class FeaturesOfChampion(JobOperator):
    """A task that runs build_features again with the champion's workflow, if the gate kept the champion."""

    def execute(self, context: Any) -> dict[str, Any]:
        """Runs build_features. Skips the task if the gate promoted the challenger or there is no champion."""
        evaluated = result_of(context["ti"], "evaluate_model")
        if evaluated["promoted"] or evaluated["champion"] is None:
            raise AirflowSkipException("nothing to build: the challenger serves, or there is no champion")
        return super().execute(context)


# The rule is NONE_FAILED, because the task refit_model is skipped if train.refit is false.
@task(trigger_rule=TriggerRule.NONE_FAILED)
def promote(dataset: str, ti: Any = None, outlet_events: Any = None) -> None:
    """Updates the asset of the champion of a dataset. The gate has already recorded the promotion."""
    evaluated = result_of(ti, "evaluate_model")
    if not evaluated["promoted"]:
        raise AirflowSkipException(f"the champion stays: {evaluated['reason']}")
    outlet_events[champion(Dataset(dataset))].extra = {
        "run_date": evaluated["run_date"],
        "version": evaluated["challenger"],
        "auc": evaluated["challenger_auc"],
        "reason": evaluated["reason"],
    }


@task(trigger_rule=TriggerRule.NONE_FAILED)
def notify(ti: Any = None) -> None:
    """Sends an alert with the decision of the gate."""
    evaluated = result_of(ti, "evaluate_model")
    kind, words = ("promoted", "serves now") if evaluated["promoted"] else ("kept", "does not serve")
    facts = {
        name: evaluated[name]
        for name in ("run_date", "challenger", "champion", "challenger_auc", "champion_auc")
    }
    tell(
        kind,
        f"the model of {evaluated['run_date']} {words}: {evaluated['reason']}",
        dag=ti.dag_id,
        **facts,
        warnings=evaluated["warnings"],
    )


def create_weekly(dataset: Dataset) -> DAG:
    """Creates the DAG `weekly_training` of a dataset."""
    dag_id, late_hours = dataset.id_of(DAG_ID), dataset.weekly_late_hours
    with DAG(
        dag_id,
        description="Fits or extends the workflow, trains a challenger, evaluates it, and promotes it or not",
        doc_md=__doc__,
        schedule=CronPartitionTimetable(
            dataset.weekly_cron, timezone=dataset.timezone, key_format="%Y-%m-%d"
        ),
        catchup=False,
        max_active_runs=1,
        tags=["nightrank", "training"],
        params={
            "run_date": DATE_PARAM,
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
    stage = stages_of(dataset, part="retraining")
    chain(
        # The partition key is the day of the run. The last complete day is the day before it.
        *first_sensors(dataset, "daily_recommendations", yields=True, days_before_key=1),
        stage("quality_gate", step="build_features", job="check_quality", overrides=()),
        stage("build_features"),
        stage("train_model"),
        stage("train_retriever"),
        stage("evaluate_model"),
        stage("refit_model"),
        [
            promote.override(outlets=[champion(dataset)])(dataset.name),
            stage(
                "build_features_again",
                operator=FeaturesOfChampion,
                step="build_features",
                overrides=("workflow.mode=apply",),
            ),
        ],
        notify(),
        *_last_tasks(dataset, stage),
    )


def _last_tasks(dataset: Dataset, stage: Callable[..., JobOperator]) -> list[JobOperator]:
    """Returns the task that deletes old dates, if the dataset says how many days are kept."""
    if dataset.prune_keep_days is None:
        return []
    options = ("--keep-days", str(dataset.prune_keep_days), "--delete")
    return [stage("prune", step="build_features", job="prune", overrides=(), options=options)]
