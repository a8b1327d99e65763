"""The runner `livy`: Airflow's provider submits each job as a batch to the REST API of Apache Livy.

Livy runs spark-submit on its own machine. Its API returns no exit codes. So the runner reads the exit code
from the last line that a failed job logs. Livy must use Spark's deploy mode `client`; otherwise its API does
not return the log of the job.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow.providers.apache.livy.hooks.livy import BatchState, LivyHook
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from requests.exceptions import ConnectionError as NoConnection
from requests.exceptions import Timeout
from tenacity import retry_if_exception_type, stop_after_attempt, wait_exponential

from airflow_dags.commands import application, arguments
from airflow_dags.runners import Runner, summary_in

_ENDED = re.compile(r"^\S+ nightrank: (\w+) ended with exit code (\d+)$")
_LINES = 100
_STATE_KEY = "nightrank_livy_batch"
# Livy sets these two properties. By default it refuses a batch that sets them.
_OF_LIVY = {"spark.master", "spark.submit.deployMode"}
_RETRY = {
    "stop": stop_after_attempt(6),
    "wait": wait_exponential(max=30),
    "retry": retry_if_exception_type((NoConnection, Timeout)),
    "reraise": True,
}


class LivyRunner(Runner):
    """Runs a job as a batch of Livy. A killed task deletes its batch, which ends the job."""

    _hook: LivyHook | None = None
    _batch: int | None = None

    def _run(self, context: Mapping[str, Any]) -> dict[str, Any]:
        connection = self.settings.runner.connection
        self._hook = LivyHook() if connection is None else LivyHook(livy_conn_id=connection)
        store = context.get("task_state_store")
        self._end_earlier_batch(store)
        name = f"{self.call.name} {uuid.uuid4().hex[:8]}"  # Livy refuses a second batch of the same name
        self._batch = self._hook.post_batch(
            file=application(self.call, self.settings),
            args=arguments(self.call, self.settings),
            name=name,
            conf=self._properties(),
            proxy_user=self.settings.runner.proxy_user,
        )
        if store is not None:
            store.set(_STATE_KEY, {"batch": self._batch, "name": name})
        state = self._wait(self._hook, self._batch)
        lines = log_of(self._hook, self._batch)
        for line in lines:
            self.log.info("%s", line)
        return self._outcome(state, lines)

    def kill(self) -> None:
        """Deletes the batch."""
        if self._hook is not None and self._batch is not None:
            self._hook.delete_batch(self._batch)

    def _wait(self, hook: LivyHook, batch: int) -> BatchState:
        """Waits until the batch has ended, and returns its state."""
        last = None
        while True:
            state = hook.get_batch_state(batch, retry_args=_RETRY)
            if state is not last:
                self.log.info("The batch %s of Livy is %s", batch, state.value)
            if state in hook.TERMINAL_STATES:
                return state
            last = state
            time.sleep(self.settings.runner.poll_s)

    def _outcome(self, state: BatchState, lines: list[str]) -> dict[str, Any]:
        """Sets the exit code. Returns the job summary, or raises AirflowException if the job failed."""
        if state is not BatchState.SUCCESS:
            ends = [ended for line in lines if (ended := _ENDED.match(line)) and ended[1] == self.call.job]
            self.exit_code = int(ends[-1][2]) if ends else None
            raise AirflowException(f"the batch {self._batch} of Livy is {state.value}; its log is above")
        self.exit_code = 0
        summaries = [summary for line in lines if (summary := summary_in(line))]
        if not summaries:
            raise AirflowException(
                f"the batch {self._batch} of Livy succeeded, but its log has no job summary\n"
                "  what to do: set livy.spark.deploy-mode to client in the configuration of Livy"
            )
        return summaries[-1]

    def _properties(self) -> dict[str, str]:
        """Returns the properties of the Spark profile. Livy has no option for a properties file."""
        path = self.settings.profile(self.call.job)
        try:
            properties = properties_in(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise AirflowFailException(
                f"the Airflow Variable {self.settings.variable!r} names the Spark profile {path}, which "
                f"cannot be read on this worker: {error}\n"
                "  what to do: with the runner 'livy', write the absolute path of a file on Airflow's workers"
            ) from error
        if properties.get("spark.submit.deployMode", "client") != "client":
            raise AirflowFailException(
                f"the Spark profile {path} sets spark.submit.deployMode, which must be client\n"
                "  what to do: remove the property; the runner 'livy' needs the log of the driver"
            )
        return {name: value for name, value in properties.items() if name not in _OF_LIVY and value}

    def _end_earlier_batch(self, store: Any) -> None:
        """Deletes the batch of an earlier attempt whose worker was lost: the batch may still run the job."""
        earlier = None if store is None else store.get(_STATE_KEY)
        if not isinstance(earlier, dict) or self._hook is None:
            return
        try:
            # The id alone is not enough, because a restarted Livy counts its batches from 0 again.
            if self._hook.get_batch(earlier["batch"]).get("name") == earlier["name"]:
                self._hook.delete_batch(earlier["batch"])
        except AirflowException as error:
            self.log.info("The batch of the last attempt does not exist, or cannot be deleted: %s", error)


def log_of(hook: LivyHook, batch: int) -> list[str]:
    """Returns the lines of the log that Livy keeps: by default the last 200 of each stream."""
    lines: list[str] = []
    while True:
        page = hook.get_batch_logs(batch, len(lines), _LINES)
        lines += page.get("log", [])
        if not page.get("log") or len(lines) >= page.get("total", 0):
            return [line.rstrip("\n") for line in lines]


def properties_in(text: str) -> dict[str, str]:
    """Returns the properties in the text of a Spark properties file."""
    properties = {}
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith(("#", "!")):
            name, *value = re.split(r"\s*[=:]\s*|\s+", stripped, maxsplit=1)
            properties[name] = value[0] if value else ""
    return properties
