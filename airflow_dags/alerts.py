"""Sends alerts about failed tasks, late runs and the gate's decisions.

Each alert is logged. If the Airflow connection `nightrank_alerts` exists, the alert is also posted as JSON to
the address in this connection.
"""

from __future__ import annotations

import json
import logging
import urllib.request
from collections.abc import Mapping
from typing import Any, Literal

from airflow.sdk.bases.hook import BaseHook
from airflow.sdk.exceptions import AirflowException

# The kinds of alerts. docs/operations.md explains each kind, and says how to react.
Kind = Literal["task_failed", "late", "promoted", "kept"]
CONNECTION = "nightrank_alerts"
_PATIENCE_S = 10
_MOST_CHARACTERS = 2000
_ENDED = ("success", "failed")  # states of runs that have ended

log = logging.getLogger("nightrank.alerts")


def tell(kind: Kind, text: str, **facts: Any) -> None:
    """Logs an alert, and posts it to the address in the Airflow connection `nightrank_alerts`, if any.

    If posting fails, the error is only logged, because an alert must not make the task fail that sends it.

    Args:
        kind: what happened.
        text: the message for people. Chat programs that accept webhooks show the key `text`.
        facts: other JSON keys and their values, for programs.
    """
    log.warning("%s: %s", kind, text)
    try:
        connection = BaseHook.get_connection(CONNECTION)
    except AirflowException:
        log.info("the alert is only logged: there is no Airflow connection %s", CONNECTION)
        return
    body = json.dumps({"kind": kind, "text": text[:_MOST_CHARACTERS], **facts}).encode()
    headers = {"Content-Type": "application/json"}
    if connection.password:
        headers["Authorization"] = f"Bearer {connection.password}"
    try:
        request = urllib.request.Request(str(connection.host), body, headers, method="POST")
        with urllib.request.urlopen(request, timeout=_PATIENCE_S):
            pass
    except (OSError, ValueError) as error:
        log.error("the alert could not be posted to the address of the connection %s: %s", CONNECTION, error)


def task_failed(context: Mapping[str, Any]) -> None:
    """Sends an alert about a failed task. Airflow calls this function when it does not retry the task."""
    ti = context["ti"]
    error = str(context.get("exception") or "no exception")
    tell(
        "task_failed",
        f"{ti.dag_id}.{ti.task_id} of {ti.run_id} failed: {error}",
        dag=ti.dag_id,
        task=ti.task_id,
        run=ti.run_id,
        try_number=ti.try_number,
    )


def late(dag: str, hours: float, context: Mapping[str, Any] | None = None) -> None:
    """Sends an alert about a run that has not ended by its deadline. The run continues.

    Airflow also calls this function for runs that failed before their deadline. `task_failed` has already
    sent an alert about such a run, so this function sends none.

    Args:
        dag: the id of the DAG.
        hours: the deadline, in hours after the run was queued.
        context: Airflow adds the run as `context["dag_run"]`, a mapping.
    """
    if ((context or {}).get("dag_run") or {}).get("state") in _ENDED:
        return
    tell("late", f"a run of {dag} has not ended {hours:g} hours after it was queued", dag=dag, hours=hours)
