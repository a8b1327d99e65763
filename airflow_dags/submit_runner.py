"""The runner `spark-submit`: a task runs spark-submit, or Python if the master is local, on its worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_dags.commands import Call, application, arguments
from airflow_dags.job_hook import JobHook
from airflow_dags.node_check import check_node
from airflow_dags.runners import Runner
from airflow_dags.settings import Settings, spark_master


class SubmitRunner(Runner):
    """Runs a job by Airflow's Spark provider on the worker of the task."""

    _hook: JobHook | None = None

    def run(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """Checks the worker if `check_node` is true, then runs the job as `Runner.run` does."""
        if self.settings.check_node and not self.call.is_plan:
            check_node(self.call, self.settings, self.log)
        return super().run(context)

    def _run(self, context: Mapping[str, Any]) -> dict[str, Any]:
        self._hook = hook_for(self.call, self.settings)
        try:
            self._hook.submit(application(self.call, self.settings))
        finally:
            self.exit_code = self._hook.exit_code
        return self._hook.closing

    def kill(self) -> None:
        """Ends spark-submit and all processes of the job."""
        if self._hook is not None:
            self._hook.on_kill()


def hook_for(call: Call, settings: Settings) -> JobHook:
    """Returns the hook that runs a job.

    Raises:
        AirflowException: Airflow returned no Spark connection.
        AirflowFailException: the Spark connection has no host.
    """
    spark_master(settings)  # without a connection, the provider would submit jobs to YARN
    return JobHook(
        folder=settings.home,
        conn_id=settings.spark_connection,
        name=call.name,
        application_args=arguments(call, settings),
        properties_file=settings.profile(call.job),
        spark_binary=settings.spark_submit,
        env_vars=dict(settings.environment) or None,
        # In cluster mode the task could not read the job summary.
        deploy_mode="client" if call.is_plan else None,
    )
