"""A client of Airflow's REST API: runs, tasks, logs."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from setup.console import SetupError

_ENDED = ("success", "failed")
_TIMEOUT_S = 30
# Seconds between requests: runs take minutes, and each request is work for the API server.
_LOOK_EVERY_S = 2


@dataclass
class Api:
    """A client of the API at a URL. It requests a token when it needs one."""

    url: str
    _token: str = field(default="", repr=False)

    def answers(self) -> bool:
        """Returns whether scheduler, triggerer, DAG processor and database report that they are healthy."""
        try:
            health = self._json("GET", "/api/v2/monitor/health", token=False)
        except OSError:
            return False
        parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return all(health[part]["status"] == "healthy" for part in parts)

    def get(self, path: str) -> Any:
        """Sends a GET request and returns the parsed answer."""
        return self._json("GET", f"/api/v2{path}")

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Sends a POST request and returns the parsed answer."""
        return self._json("POST", f"/api/v2{path}", body)

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """Sends a PATCH request and returns the parsed answer."""
        return self._json("PATCH", f"/api/v2{path}", body)

    def trigger(self, dag: str, conf: Mapping[str, Any], partition_key: str | None = None) -> str:
        """Starts a run of a DAG with the Params `conf`. Returns the run id."""
        asked: dict[str, Any] = {"logical_date": None, "conf": dict(conf)}
        if partition_key:
            asked["partition_key"] = partition_key
        return str(self.post(f"/dags/{dag}/dagRuns", asked)["dag_run_id"])

    def state(self, dag: str, run: str) -> str:
        """Returns the state of a run, such as success."""
        return str(self.get(f"/dags/{dag}/dagRuns/{quote(run)}")["state"])

    def wait(self, dag: str, run: str, timeout_s: float) -> str:
        """Waits for the end of a run. Returns `success` or `failed`.

        Raises:
            SetupError: the run has not ended in time. The message contains the states of its tasks.
        """
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            state = self.state(dag, run)
            if state in _ENDED:
                return state
            time.sleep(_LOOK_EVERY_S)
        states = {name: instance["state"] for name, instance in self.tasks(dag, run).items()}
        raise SetupError(f"{dag} {run} has not ended after {timeout_s:g} s: {states}")

    def tasks(self, dag: str, run: str) -> dict[str, dict[str, Any]]:
        """Returns the current task instances of a run, by task id, as the API describes them.

        The id of a mapped task includes its index, as in night[0].
        """
        listed = self.get(f"/dags/{dag}/dagRuns/{quote(run)}/taskInstances?limit=100")
        return {_name(instance): instance for instance in listed["task_instances"]}

    def log(self, dag: str, run: str, task: str, try_number: int) -> str:
        """Returns the text of a task's log."""
        path = f"/dags/{dag}/dagRuns/{quote(run)}/taskInstances/{task}/logs/{try_number}?full_content=true"
        return json.dumps(self.get(path)["content"])

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None, token: bool = True) -> Any:
        headers = {"Content-Type": "application/json"}
        if token:
            if not self._token:
                self._token = self._json("GET", "/auth/token", token=False)["access_token"]
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            answer = error.read().decode(errors="replace")[:500]
            raise SetupError(f"Airflow answered {method} {path} with {error.code}: {answer}") from error


def _name(task: Mapping[str, Any]) -> str:
    return str(task["task_id"]) if task["map_index"] < 0 else f"{task['task_id']}[{task['map_index']}]"
