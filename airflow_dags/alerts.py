"""Who is told, and of what: a failed task, a run that is late, a training's outcome. Each is logged, and posted as JSON to the
address of the Airflow connection `nightrank_alerts` where there is one.
"""

from __future__ import annotations

import json
import logging
import urllib.request
from collections.abc import Mapping
from typing import Any, Literal

from airflow.sdk.bases.hook import BaseHook
from airflow.sdk.exceptions import AirflowException

# What each means, and what is to be done then: docs/operations.md.
Kind = Literal["task_failed", "late", "promoted", "kept"]
CONNECTION = "nightrank_alerts"
_PATIENCE_S = 10
_MOST_CHARACTERS = 2000

log = logging.getLogger("nightrank.alerts")


def tell(kind: Kind, text: str, **facts: Any) -> None:
    """Logs an alert and posts it. One that cannot be posted is logged with the reason: it must not fail what it tells of.

    Args:
        text: for people; chats that take webhooks show this key.
        facts: for programs.
    """
    log.warning("%s: %s", kind, text)
    try:
        connection = BaseHook.get_connection(CONNECTION)
    except AirflowException:
        log.info("there is no connection %s: nobody else is told", CONNECTION)
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
        log.error("%s was not told: %s", CONNECTION, error)


def task_failed(context: Mapping[str, Any]) -> None:
    """Callback of every task that fails for good; retries are not told."""
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


def late(dag: str, hours: float) -> None:
    """Callback of a deadline: a run has not ended in time. It goes on; nothing is stopped."""
    tell("late", f"a run of {dag} has not ended {hours:g} hours after it was queued", dag=dag, hours=hours)
