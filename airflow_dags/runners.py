"""A runner runs one job for a task: by spark-submit, in a pod of Kubernetes, or by Livy.

The key `runner` of the Variable chooses the runner. With each runner, a job has the same script and
arguments. Its exit code decides whether Airflow retries the task, and its job summary is the XCom of the
task.
"""

from __future__ import annotations

import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_dags.commands import Call
from airflow_dags.retries import failure
from airflow_dags.settings import Settings

# For each runner: its module in airflow_dags, its class, and the package of its provider. A module imports
# its provider, so it is imported only when a task needs it.
_RUNNERS = {
    "spark-submit": ("submit_runner", "SubmitRunner", "apache-airflow-providers-apache-spark"),
    "kubernetes": ("kubernetes_runner", "KubernetesRunner", "apache-airflow-providers-cncf-kubernetes"),
    "livy": ("livy_runner", "LivyRunner", "apache-airflow-providers-apache-livy"),
}


class Runner(ABC):
    """Runs one job once.

    Attributes:
        call: the job.
        settings: the settings of the dataset.
        log: the logger of the task.
        exit_code: the exit code of the job; None if the job has not ended or the code is unknown.
    """

    exit_code: int | None = None

    def __init__(self, call: Call, settings: Settings, log: Any) -> None:
        self.call = call
        self.settings = settings
        self.log = log

    def run(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """Runs the job to its end and returns the job summary.

        Raises:
            AirflowFailException: a retry cannot help.
            AirflowException: the job failed, and a retry may help.
        """
        try:
            return self._run(context)
        except AirflowFailException:
            raise
        except (AirflowException, OSError, RuntimeError) as error:
            raise failure(self.call.job, self.exit_code, error) from error

    @abstractmethod
    def _run(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """Runs the job to its end, sets `exit_code`, and returns the job summary."""

    @abstractmethod
    def kill(self) -> None:
        """Ends the job if it runs."""


def runner_for(call: Call, settings: Settings, log: Any) -> Runner:
    """Returns the runner that the settings choose, for one job.

    Raises:
        AirflowFailException: the provider of the runner is not installed on this worker.
    """
    kind = settings.runner.kind
    module, name, package = _RUNNERS[kind]
    try:
        runner: type[Runner] = getattr(importlib.import_module(f"airflow_dags.{module}"), name)
    except ImportError as error:
        raise AirflowFailException(
            f"the runner {kind!r} of the Airflow Variable {settings.variable!r} needs the package {package}, "
            f"which cannot be imported on this worker: {error}\n"
            f"  what to do: install {package}, or choose another runner (docs/airflow.md)"
        ) from error
    return runner(call, settings, log)


def summary_in(line: str) -> dict[str, Any] | None:
    """Returns the job summary in a line of a job's output; None if the line is not a job summary."""
    if not line.startswith("{"):
        return None
    try:
        summary = json.loads(line)
    except json.JSONDecodeError:
        return None
    return summary if isinstance(summary, dict) and {"job", "seconds"} <= summary.keys() else None
