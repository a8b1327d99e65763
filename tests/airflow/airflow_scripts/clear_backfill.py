"""Executes the task of a day of a back-fill twice, as after it is cleared, by Airflow's client of its API.

Prints the requests to the API, whose server refuses a run id that exists already.
"""

import json
from types import SimpleNamespace

import httpx
import structlog
from airflow.sdk.api.client import DagRunOperations, ServerResponseError
from airflow.sdk.exceptions import DagRunTriggerException
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import GetDagRunState

from airflow_dags.backfill_recommendations import create_backfill
from airflow_dags.dataset import DEFAULT_DATASET

requests, runs = [], set()


class Server:
    """The API server. It keeps the ids of runs."""

    def post(self, path, content=None):
        requests.append(path)
        if content is not None and path in runs:
            request = httpx.Request("POST", f"http://airflow/{path}")
            error = ServerResponseError("conflict", request=request, response=httpx.Response(409))
            error.detail = {"reason": "already_exists"}
            raise error
        runs.add(path)


class Supervisor:
    """The supervisor of the task. Each run of a day has ended when the task asks for its state."""

    def send(self, message):
        if isinstance(message, GetDagRunState):
            return SimpleNamespace(state="success")
        return DagRunOperations(Server()).trigger(
            message.dag_id, message.run_id, message.conf, reset_dag_run=message.reset_dag_run
        )


class Ti:
    rendered_map_index = None
    state = "running"

    def get_dag(self, dag_id):
        return SimpleNamespace(is_paused=False)

    def xcom_push(self, key, value):
        """Stores nothing."""


task_runner.SUPERVISOR_COMMS = Supervisor()
task_runner.time = SimpleNamespace(sleep=lambda _: None)
task_runner._handle_current_task_success = lambda context, ti: (None, "success")
night = create_backfill(DEFAULT_DATASET).get_task("night")
states = []
for _ in range(2):
    operator = night.unmap({"trigger_run_id": "run__2026-01-05", "conf": {"run_date": "2026-01-05"}})
    try:
        operator.execute({"ti": Ti()})
    except DagRunTriggerException as trigger:
        _, state = task_runner._handle_trigger_dag_run(trigger, {}, Ti(), structlog.get_logger())
        states.append(state)
print(json.dumps({"states": states, "requests": requests}))
