"""Creates the Airflow tasks that run jobs; `stage(name)` creates each of these tasks.

Each task is a SparkSubmitOperator. It reads the Spark profile, the configuration file and `--set` values from
the Airflow Variable of the dataset. It reads the day and the overrides of the stage from the plan of the run.
The job's exit code decides whether the task is retried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from airflow_dags.dataset import DEFAULT_DATASET, VARIABLE, Dataset
from airflow_dags.job_hook import JobHook
from airflow_dags.node_check import check_node
from airflow_dags.overrides import refusal
from airflow_dags.retries import failure
from airflow_dags.settings import SPARK_CONNECTION, Settings, read_settings, spark_master

PLAN = "raw_log"  # the task whose XCom is the plan of the run


@dataclass(frozen=True)
class Call:
    """A job, the day that it processes, and the `--set` values of this run of the job."""

    job: str
    run_date: str
    overrides: tuple[str, ...] = ()


def hook_for(call: Call, settings: Settings, deploy_mode: str | None = None) -> JobHook:
    """Returns the hook that runs a job.

    Raises:
        AirflowFailException: the Spark connection does not exist.
    """
    spark_master(settings)
    words = ["--config", settings.config, "--run-date", call.run_date]
    for override in (*settings.overrides, *call.overrides):
        words += ["--set", override]
    return JobHook(
        folder=settings.home,
        conn_id=settings.spark_connection,
        name=f"nightrank {call.job} {call.run_date}",
        application_args=words,
        properties_file=settings.profile(call.job),
        spark_binary=settings.spark_submit,
        env_vars=dict(settings.environment) or None,
        deploy_mode=deploy_mode,
    )


def asked_overrides(params: Mapping[str, Any], settings: Settings) -> tuple[str, ...]:
    """Returns the `--set` values of a run, from its Param `set`.

    Raises:
        AirflowFailException: a value changes a key that the Param must not change.
    """
    asked = tuple(params.get("set") or ())
    if refused := refusal(asked, settings.param_keys, settings.variable):
        raise AirflowFailException(refused)
    return asked


def application(call: Call, settings: Settings) -> str:
    """Returns the path of the script of a job."""
    return f"{settings.home}/jobs/{call.job}.py"


class JobOperator(SparkSubmitOperator):
    """An operator that runs one step of the run's plan and returns the job summary.

    A step is one job for one day. The task is skipped if the plan does not contain the step.

    Args:
        step: name of the step in the plan. The step contains the day and the overrides.
        part: the key of the plan whose list contains the step: `night` or `retraining`.
        job: the job to run; by default the job of the step.
        overrides: `--set` values of this task; by default those of the step.
        variable: the name of the Airflow Variable of the dataset.
    """

    def __init__(
        self,
        *,
        step: str,
        part: str = "night",
        job: str | None = None,
        overrides: Sequence[str] | None = None,
        variable: str = VARIABLE,
        **kwargs: Any,
    ) -> None:
        super().__init__(conn_id=SPARK_CONNECTION, durable=False, **kwargs)
        self.step = step
        self.part = part
        self.job = job
        self.overrides = overrides
        self.variable = variable
        self._call: Call | None = None
        self._settings: Settings | None = None

    def execute(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """Runs the job. If the job fails, raises the exception that `failure` returns."""
        plan = context["ti"].xcom_pull(task_ids=PLAN)
        step = find_step(plan, self.part, self.step)
        if step is None:
            raise AirflowSkipException(f"the plan has no step {self.step}")
        overrides = tuple(step["overrides"] if self.overrides is None else self.overrides)
        self._settings = read_settings(self.variable)
        asked = asked_overrides(context["params"], self._settings)
        self._call = Call(self.job or step["job"], step["run_date"], (*overrides, *asked))
        self.application = application(self._call, self._settings)
        if self._settings.check_node:
            used = (*self._settings.overrides, *self._call.overrides)
            check_node(self._call.job, used, self._settings, self.log)
        self._hook = None  # a retry in this process must not reuse the hook of the last attempt
        try:
            super().execute(context)
        except AirflowFailException:
            raise
        except (AirflowException, OSError, RuntimeError) as error:
            raise failure(self._call.job, self._hook.exit_code if self._hook else None, error) from error
        return self._hook.closing if self._hook else {}

    def _get_hook(self) -> JobHook:
        if self._call is None or self._settings is None:
            raise AirflowException(
                f"internal error, please report: {self.task_id} asked for its hook before it began"
            )
        return hook_for(self._call, self._settings)

    def on_kill(self) -> None:
        """Ends the job."""
        if self._hook is not None:
            self._hook.on_kill()


def find_step(plan: Mapping[str, Any] | None, part: str, name: str) -> Mapping[str, Any] | None:
    """Returns the step `name` from the list `plan[part]`; None if there is no such step or no plan."""
    steps = plan[part] if plan else []
    return next((step for step in steps if step["name"] == name), None)


def stage(
    name: str,
    dataset: Dataset = DEFAULT_DATASET,
    operator: type[JobOperator] = JobOperator,
    **options: Any,
) -> JobOperator:
    """Creates a task that runs the step `name`. `options` are further arguments of the operator."""
    job = options.get("job") or options.get("step") or name
    chosen: dict[str, Any] = {
        "task_id": name,
        "step": name,
        "pool": dataset.pool,
        "execution_timeout": dataset.time_limit(job),
        # After a skipped step the next step still runs. After a failed step it does not.
        "trigger_rule": "none_failed",
        "variable": dataset.variable,
        **options,
    }
    return operator(**chosen)


def stages_of(dataset: Dataset, **common: Any) -> Callable[..., JobOperator]:
    """Returns `stage` for a dataset. `common` are arguments of all its tasks."""
    return partial(stage, dataset=dataset, **common)
