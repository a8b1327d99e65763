"""The runner `kubernetes`: each job is a pod, which the KubernetesPodOperator of Airflow's provider runs.

With a local master, the pod runs Python, as job_hook.py does on a worker. With another master, the pod runs
spark-submit in client mode. Then the pod is the driver, and its exit code is the exit code of the job.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from airflow.providers.cncf.kubernetes.callbacks import KubernetesPodOperatorCallback
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout
from kubernetes.client import CoreV1Api
from kubernetes.client import models as k8s
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from airflow_dags.commands import application, arguments, beside, doctor_arguments
from airflow_dags.runners import Runner, summary_in
from airflow_dags.settings import spark_master

_CONTAINER = "base"
_LAST_LINES = 100
# HTTP status codes of the API that say that the pod or its namespace is wrong, so a retry cannot help. 403 is
# not in this set: it may mean that a quota is exceeded, and then a retry can help.
_HOPELESS = {400, 404, 422}
_POD_IP, _POD_NAME = "POD_IP", "POD_NAME"


class KubernetesRunner(Runner):
    """Runs a job in a pod. A killed task deletes its pod."""

    _operator: KubernetesPodOperator | None = None
    _summary: dict[str, Any] | None = None

    def _run(self, context: Mapping[str, Any]) -> dict[str, Any]:
        self._operator = self.operator()
        try:
            self._operator.execute_sync(context)  # only Airflow's task runner may call `execute`
        except ApiException as error:
            raise self._api_error(error) from error
        except HTTPError as error:
            raise AirflowException(f"the Kubernetes API cannot be reached: {error}") from error
        except AirflowException as error:
            if isinstance(error.__context__, AirflowTaskTimeout):  # the clean-up after a timeout failed too
                raise error.__context__ from None
            raise
        finally:
            self.exit_code = exit_code_of(self._operator.remote_pod)
        if self._summary is None:
            raise AirflowException("the pod succeeded, but its log has no job summary")
        return self._summary

    def kill(self) -> None:
        """Deletes the pod."""
        if self._operator is not None:
            self._operator.on_kill()

    def operator(self) -> KubernetesPodOperator:
        """Returns the operator that runs the pod.

        Raises:
            AirflowFailException: the Spark connection does not exist.
        """
        runner, job = self.settings.runner, self.call.job
        amounts = runner.resources_of(job)
        connection = {} if runner.connection is None else {"kubernetes_conn_id": runner.connection}
        return KubernetesPodOperator(
            task_id=job,
            name=f"nightrank-{job.replace('_', '-')}-{self.call.run_date}",
            namespace=runner.namespace,
            image=runner.image_of(job),
            arguments=self._words(),  # the image's entry point runs this command
            env_vars=self._environment(),
            service_account_name=runner.service_account,
            container_resources=k8s.V1ResourceRequirements(**amounts) if amounts else None,
            labels={"app.kubernetes.io/name": "nightrank", "app.kubernetes.io/component": "job"},
            pod_template_file=runner.pod_template,
            full_pod_spec=_pod_in(self.settings.home),
            base_container_name=_CONTAINER,
            startup_timeout_seconds=runner.startup_timeout_s,
            log_events_on_failure=True,
            log_pod_spec_on_failure=False,  # the pod spec would show the environment variables in the log
            callbacks=[_summary_reader(self)],
            do_xcom_push=False,
            deferrable=False,
            **connection,
        )

    def keep_summary(self, line: str) -> None:
        """Stores the job summary if this line of the pod's log contains it."""
        self._summary = summary_in(line) or self._summary

    def read_last_lines(self, client: CoreV1Api, pod: k8s.V1Pod) -> None:
        """Reads the end of the log again if no job summary was read: the stream may have ended early."""
        if self._summary is not None:
            return
        name, namespace = pod.metadata.name, pod.metadata.namespace
        try:
            # With _preload_content=True, some releases of the client return the repr of the bytes as text.
            answer = client.read_namespaced_pod_log(
                name, namespace, container=_CONTAINER, tail_lines=_LAST_LINES, _preload_content=False
            )
            text = answer.data.decode("utf-8", errors="replace")
        except (ApiException, HTTPError) as error:
            self.log.warning("The end of the log of the pod %s cannot be read: %s", name, error)
            return
        for line in text.splitlines():
            self.keep_summary(line)

    def _words(self) -> list[str]:
        """Returns the command of the pod. Kubernetes replaces $(NAME) by the value of NAME, and $$ by $."""
        master = spark_master(self.settings)
        python = beside(self.settings.spark_submit, "python")
        script = application(self.call, self.settings)
        job = [_literal(word) for word in (script, *arguments(self.call, self.settings))]
        if master.startswith("local"):
            command = [_literal(python), *job]
        else:
            driver = ["--conf", f"spark.driver.host=$({_POD_IP})"]
            if master.startswith("k8s:"):
                driver += ["--conf", f"spark.kubernetes.driver.pod.name=$({_POD_NAME})"]
            options = [_literal(word) for word in self._options(master)]
            command = [_literal(self.settings.spark_submit), *options, *driver, *job]
        if not self.settings.check_node or self.call.is_plan:
            return command
        # The check runs in the pod of the job, because another pod may run on another node.
        check = [_literal(word) for word in (python, *doctor_arguments(self.call, self.settings, master))]
        return ["sh", "-c", f"{shlex.join(check)} && exec {shlex.join(command)}"]

    def _options(self, master: str) -> list[str]:
        profile = self.settings.profile(self.call.job)
        options = ["--master", master, "--properties-file", profile, "--name", self.call.name]
        return [*options, "--deploy-mode", "client"]

    def _environment(self) -> list[k8s.V1EnvVar]:
        values = dict(self.settings.environment)
        master = spark_master(self.settings)
        if master.startswith("local"):
            values["PYSPARK_SUBMIT_ARGS"] = shlex.join([*self._options(master), "pyspark-shell"])
        fields = {_POD_IP: "status.podIP", _POD_NAME: "metadata.name"}
        return [
            *(
                k8s.V1EnvVar(
                    name=name,
                    value_from=k8s.V1EnvVarSource(field_ref=k8s.V1ObjectFieldSelector(field_path=path)),
                )
                for name, path in fields.items()
            ),
            *(k8s.V1EnvVar(name=name, value=_literal(value)) for name, value in values.items()),
        ]

    def _api_error(self, error: ApiException) -> AirflowException:
        answer = f"the Kubernetes API answered {error.status} {error.reason}: {error.body}"
        is_created = self._operator is not None and self._operator.pod is not None
        if is_created or error.status not in _HOPELESS:
            return AirflowException(answer)
        return AirflowFailException(
            f"{answer}\n  what to do: correct the key `runner` of the Airflow Variable "
            f"{self.settings.variable!r} or the pod template that it names"
        )


def exit_code_of(pod: k8s.V1Pod | None) -> int | None:
    """Returns the exit code of a pod's job; None if the job has not ended or its node was lost."""
    statuses = (pod.status.container_statuses if pod and pod.status else None) or []
    for status in statuses:
        if status.name == _CONTAINER and status.state and status.state.terminated:
            return int(status.state.terminated.exit_code)
    return None


def _pod_in(folder: str) -> k8s.V1Pod:
    """Returns a pod that sets only the job's working folder, because the operator has no argument for it."""
    container = k8s.V1Container(name=_CONTAINER, working_dir=folder)
    return k8s.V1Pod(metadata=k8s.V1ObjectMeta(), spec=k8s.V1PodSpec(containers=[container]))


def _literal(text: str) -> str:
    """Returns a text with escaped dollar signs, so that Kubernetes replaces no variables in it."""
    return text.replace("$", "$$")


def _summary_reader(runner: KubernetesRunner) -> KubernetesPodOperatorCallback:
    class SummaryReader(KubernetesPodOperatorCallback):
        @staticmethod
        def progress_callback(*, line: str, **_: Any) -> None:
            runner.keep_summary(line)

        @staticmethod
        def on_pod_completion(*, client: CoreV1Api, operator: KubernetesPodOperator, **_: Any) -> None:
            runner.read_last_lines(client, operator.pod)

    return SummaryReader()
