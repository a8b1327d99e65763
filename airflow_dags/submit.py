"""The one factory of tasks that run a job: `stage(name)` gives a SparkSubmitOperator that takes profile, config and `--set` from
the Variable, its day and its own overrides from the night's plan, and its fate from the job's exit code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from airflow_dags.job_hook import JobHook
from airflow_dags.overrides import refusal
from airflow_dags.settings import POOL, SPARK_CONNECTION, Settings, read_settings, require_spark_connection

PLAN = "raw_log"  # the task whose XCom is the night's plan
RETRIES = 2
_HOPELESS = {2: "bad configuration", 3: "bad data"}
# How long a job may run. Past it the task is ended and tried again.
_TIMEOUTS = {"train_model": timedelta(hours=12), "train_retriever": timedelta(hours=6)}
_TIMEOUT = timedelta(hours=3)


@dataclass(frozen=True)
class Call:
    """One run of one job."""

    job: str
    run_date: str
    overrides: tuple[str, ...] = ()


def hook_for(call: Call, settings: Settings, deploy_mode: str | None = None) -> JobHook:
    """The hook that runs a job.

    Raises:
        AirflowFailException: there is no Spark connection.
    """
    require_spark_connection()
    words = ["--config", settings.config, "--run-date", call.run_date]
    for override in (*settings.overrides, *call.overrides):
        words += ["--set", override]
    return JobHook(
        folder=settings.home,
        conn_id=SPARK_CONNECTION,
        name=f"nightrank {call.job} {call.run_date}",
        application_args=words,
        properties_file=settings.profile(call.job),
        spark_binary=settings.spark_submit,
        env_vars=dict(settings.environment) or None,
        deploy_mode=deploy_mode,
    )


def asked_overrides(params: Mapping[str, Any], settings: Settings) -> tuple[str, ...]:
    """The `--set` values of a run, from its Param `set`.

    Raises:
        AirflowFailException: one names a key that the Param must not change.
    """
    asked = tuple(params.get("set") or ())
    if refused := refusal(asked, settings.param_keys):
        raise AirflowFailException(refused)
    return asked


def application(call: Call, settings: Settings) -> str:
    return f"{settings.home}/jobs/{call.job}.py"


def failure(job: str, code: int | None, error: Exception) -> AirflowException:
    """What a failed job raises: for bad configuration (2) and bad data (3) what Airflow never tries again."""
    if code in _HOPELESS:
        return AirflowFailException(
            f"{job} ended with exit code {code}: {_HOPELESS[code]}, which no retry can change\n{error}"
        )
    known = "was not started" if code is None else f"ended with exit code {code}"
    return AirflowException(f"{job} {known}: worth a retry\n{error}")


class JobOperator(SparkSubmitOperator):
    """Runs one step of a plan; is skipped where the plan has no such step. Returns the job's closing line.

    Args:
        step: the step's name in the plan, which gives day and overrides.
        part: which list of the plan it stands in: `night` or `retraining`.
        job: the job, where it is not the step's own.
        overrides: `--set` values of this task alone, in place of the step's.
    """

    def __init__(
        self,
        *,
        step: str,
        part: str = "night",
        job: str | None = None,
        overrides: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(conn_id=SPARK_CONNECTION, durable=False, **kwargs)
        self.step = step
        self.part = part
        self.job = job
        self.overrides = overrides
        self._call: Call | None = None
        self._settings: Settings | None = None

    def execute(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """Raises what `failure` gives for the job's exit code."""
        plan = context["ti"].xcom_pull(task_ids=PLAN)
        found = find_step(plan, self.part, self.step)
        if found is None:
            raise AirflowSkipException(f"the plan has no step {self.step}")
        overrides = tuple(found["overrides"] if self.overrides is None else self.overrides)
        self._settings = read_settings()
        asked = asked_overrides(context["params"], self._settings)
        self._call = Call(self.job or found["job"], found["run_date"], (*overrides, *asked))
        self.application = application(self._call, self._settings)
        self._hook = None  # a retry in this process would find the last one's
        try:
            super().execute(context)
        except AirflowFailException:
            raise
        except (AirflowException, OSError, RuntimeError) as error:
            raise failure(self._call.job, self._hook.exit_code if self._hook else None, error) from error
        return self._hook.closing if self._hook else {}

    def _get_hook(self) -> JobHook:
        if self._call is None or self._settings is None:
            raise AirflowException(f"{self.task_id} has not begun: there is nothing to run or to end")
        return hook_for(self._call, self._settings)

    def on_kill(self) -> None:
        if self._hook is not None:
            self._hook.on_kill()


def find_step(plan: Mapping[str, Any] | None, part: str, name: str) -> Mapping[str, Any] | None:
    """The step of this name; None where the plan has none, or where there is no plan."""
    steps = plan[part] if plan else []
    return next((step for step in steps if step["name"] == name), None)


def stage(name: str, **options: Any) -> JobOperator:
    """A task that runs the step of this name; `options` are those of JobOperator and of any operator."""
    chosen: dict[str, Any] = {
        "task_id": name,
        "step": name,
        "pool": POOL,
        "execution_timeout": _TIMEOUTS.get(options.get("job", name), _TIMEOUT),
        # A skipped step does not skip those behind it; a failed one does not let them run.
        "trigger_rule": "none_failed",
        **options,
    }
    return JobOperator(**chosen)
