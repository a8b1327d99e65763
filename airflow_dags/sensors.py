"""The two sensors at the start of each run.

The first sensor waits until no run of the other DAG is active, because the daily DAG and the training DAG
write the same tables. The second sensor waits for the raw log and returns the plan of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_dags.commands import Call
from airflow_dags.dataset import VARIABLE, Dataset
from airflow_dags.dates import run_date_of
from airflow_dags.runners import Runner, runner_for
from airflow_dags.settings import read_settings
from airflow_dags.submit import PLAN, asked_overrides

# The states of the task that waits for the other DAG, as long as it has neither succeeded nor failed.
_WAITING = ["scheduled", "queued", "running", "up_for_reschedule", "up_for_retry", "deferred"]
_LOG_POKE_INTERVAL = timedelta(minutes=5)
_OTHER_DAG_POKE_INTERVAL = timedelta(minutes=1)
# The jobs of each DAG. A job that has two tasks is named twice.
_JOBS = {
    "daily_recommendations": (
        "check_quality",
        "build_features",
        "learn_blend",
        "build_candidates",
        "score_daily",
        "score_rows",
        "check_lists",
        "deliver_recommendations",
        "measure_recommendations",
        "report",
    ),
    "weekly_training": (
        "check_quality",
        "build_features",
        "train_model",
        "train_retriever",
        "evaluate_model",
        "refit_model",
        "build_features",
        "prune",
    ),
}


class RawLogSensor(BaseSensorOperator):
    """A sensor that waits for the day's raw log and returns the plan of the run.

    The plan is the job summary of plan_night.

    The sensor runs the job plan_night to look for the log, because only the configuration says where the log
    is. If the configuration is invalid, the task fails at once. If the Param `when_published` is `skip` and
    the lists of the day are already published, the plan is empty.

    Args:
        days_before_key: how many days the logical day is before the partition key of the run.
        variable: the name of the Airflow Variable of the dataset.
    """

    def __init__(self, *, days_before_key: int = 0, variable: str = VARIABLE, **kwargs: Any) -> None:
        super().__init__(task_id=PLAN, mode="reschedule", **kwargs)
        self.variable = variable
        self.days_before_key = days_before_key
        self._runner: Runner | None = None

    def poke(self, context: Mapping[str, Any]) -> PokeReturnValue:
        """Runs plan_night. Returns the plan, and whether the raw log exists."""
        params, settings = context["params"], read_settings(self.variable)
        overrides = asked_overrides(params, settings)
        call = Call("plan_night", run_date_of(context, self.days_before_key), overrides, is_plan=True)
        self._runner = runner_for(call, settings, self.log)
        plan = self._runner.run(context)
        raw_log = plan["raw_log"]
        if params.get("when_published") == "skip" and plan["published"]:
            self.log.info("the lists of %s are published: there is nothing to do", call.run_date)
            return PokeReturnValue(True, {**plan, "night": [], "retraining": []})
        if not raw_log["bytes"]:
            self.log.info("no raw log of %s at %s yet", call.run_date, raw_log["path"])
        return PokeReturnValue(raw_log["bytes"] > 0, plan)

    def on_kill(self) -> None:
        """Ends the job plan_night."""
        if self._runner is not None:
            self._runner.kill()


class OtherDagSensor(BaseSensorOperator):
    """A sensor that waits until the other DAG is idle, because both DAGs write the same tables.

    Args:
        other: the dag_id of the other DAG.
        yields: whether to wait even for runs of the other DAG that are waiting for this DAG. `yields` must be
            True in only one of the two DAGs; otherwise each DAG would wait for the other forever.
    """

    def __init__(self, *, other: str, yields: bool, **kwargs: Any) -> None:
        super().__init__(task_id="wait_for_other_dag", mode="reschedule", **kwargs)
        self.other = other
        self.yields = yields

    def poke(self, context: Mapping[str, Any]) -> bool:
        """Returns whether this run can start: it need not wait for any run of the other DAG."""
        ti = context["ti"]
        running = ti.get_dr_count(dag_id=self.other, states=["running"])
        waiting = (
            0 if self.yields else ti.get_ti_count(dag_id=self.other, task_ids=[self.task_id], states=_WAITING)
        )
        if running > waiting:
            self.log.info("waiting for %d active runs of %s", running - waiting, self.other)
        return bool(running <= waiting)


def longest_run(dataset: Dataset, dag: str) -> timedelta:
    """Returns the longest time that a run of a DAG can take.

    Such a run waits for its log as long as it may, and each attempt of each job reaches its time limit.

    Args:
        dataset: the dataset of the DAG.
        dag: the base id of the DAG, without the suffix `__<dataset>`, for example "weekly_training".
    """
    attempts = sum((dataset.time_limit(job) for job in _JOBS[dag]), timedelta()) * (1 + dataset.retries)
    return timedelta(hours=dataset.log_wait_hours) + attempts


def first_sensors(
    dataset: Dataset, other: str, *, yields: bool, days_before_key: int = 0
) -> list[BaseSensorOperator]:
    """Returns the first two tasks of a DAG: one waits for the other DAG, the other waits for the raw log.

    Args:
        dataset: the dataset of the DAG.
        other: the base id of the DAG to wait for, without the suffix `__<dataset>`.
        yields: see OtherDagSensor.
        days_before_key: see RawLogSensor.
    """
    return [
        OtherDagSensor(
            other=dataset.id_of(other),
            yields=yields,
            timeout=longest_run(dataset, other),
            poke_interval=_OTHER_DAG_POKE_INTERVAL,
        ),
        RawLogSensor(
            days_before_key=days_before_key,
            variable=dataset.variable,
            timeout=timedelta(hours=dataset.log_wait_hours),
            poke_interval=_LOG_POKE_INTERVAL,
        ),
    ]
