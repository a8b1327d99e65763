"""Creates the Airflow tasks that run jobs. Each call of `stage(name)` creates one task.

Each task reads the runner, the Spark profile, the configuration file and `--set` values from the Airflow
Variable of the dataset. It reads the day and the overrides of the stage from the plan of the run.
The job's exit code decides whether the task is retried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_dags.commands import Call
from airflow_dags.dataset import DEFAULT_DATASET, VARIABLE, Dataset
from airflow_dags.overrides import refusal
from airflow_dags.runners import Runner, runner_for
from airflow_dags.settings import Settings, read_settings

PLAN = "raw_log"  # the task whose XCom is the plan of the run


def asked_overrides(params: Mapping[str, Any], settings: Settings) -> tuple[str, ...]:
    """Returns the `--set` values of a run, from its Param `set`.

    Raises:
        AirflowFailException: a value changes a key that the Param must not change.
    """
    asked = tuple(params.get("set") or ())
    if refused := refusal(asked, settings.param_keys, settings.variable):
        raise AirflowFailException(refused)
    return asked


class JobOperator(BaseOperator):
    """An operator that runs one step of the run's plan and returns the job summary.

    A step is one job for one day. The task is skipped if the plan does not contain the step.

    Args:
        step: name of the step in the plan. The step contains the day and the overrides.
        part: the key of the plan whose list contains the step: `night` or `retraining`.
        job: the job to run; by default the job of the step.
        overrides: `--set` values of this task; by default those of the step.
        needs_plan: whether the task fails if the run has no plan. Otherwise it is skipped.
        options: further arguments of the job.
        variable: the name of the Airflow Variable of the dataset.
    """

    def __init__(
        self,
        *,
        step: str,
        part: str = "night",
        job: str | None = None,
        overrides: Sequence[str] | None = None,
        needs_plan: bool = True,
        options: Sequence[str] = (),
        variable: str = VARIABLE,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.step = step
        self.part = part
        self.job = job
        self.overrides = overrides
        self.needs_plan = needs_plan
        self.options = options
        self.variable = variable
        self._runner: Runner | None = None

    def execute(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """Runs the job. Raises the same errors as `Runner.run`, and those of `result_of`."""
        ti = context["ti"]
        plan = result_of(ti, PLAN) if self.needs_plan else ti.xcom_pull(task_ids=PLAN)
        step = find_step(plan, self.part, self.step)
        if step is None:
            raise AirflowSkipException(f"the plan has no step {self.step}")
        overrides = tuple(step["overrides"] if self.overrides is None else self.overrides)
        settings = read_settings(self.variable)
        asked = asked_overrides(context["params"], settings)
        job = self.job or step["job"]
        call = Call(job, step["run_date"], (*asked, *overrides), tuple(self.options))
        self._runner = runner_for(call, settings, self.log)
        return self._runner.run(context)

    def on_kill(self) -> None:
        """Ends the job."""
        if self._runner is not None:
            self._runner.kill()


def result_of(ti: Any, task_id: str) -> Any:
    """Returns the XCom of an earlier task of the run.

    Raises:
        AirflowFailException: there is none, for example because somebody marked the task as success.
    """
    result = ti.xcom_pull(task_ids=task_id)
    if result is None:
        raise AirflowFailException(
            f"the task {task_id} has no result, although it has not failed: its state was set by hand, "
            "or its XCom was deleted\n"
            f"  what to do: clear {task_id} and its downstream tasks, so that {task_id} runs"
        )
    return result


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
    """Returns the function `stage` for a dataset. `common` are arguments for all tasks that it creates."""
    return partial(stage, dataset=dataset, **common)
