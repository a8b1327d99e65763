"""Decides from a job's exit code whether Airflow retries its task, how often, and how long a job may take."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk.exceptions import AirflowException, AirflowFailException

RETRIES = 2
_HOPELESS = {2: "bad configuration", 3: "bad data"}
_TIMEOUTS = {
    "train_model": timedelta(hours=12),
    "train_retriever": timedelta(hours=6),
    "refit_model": timedelta(hours=12),
}
_TIMEOUT = timedelta(hours=3)


def timeout_of(job: str) -> timedelta:
    """Returns the maximum duration of a job. After this time the job is ended and the task is retried."""
    return _TIMEOUTS.get(job, _TIMEOUT)


def failure(job: str, code: int | None, error: Exception) -> AirflowException:
    """Returns the exception for a failed job. It decides whether Airflow retries the task.

    The task is not retried after exit code 2 (bad configuration) or 3 (bad data).
    """
    if code in _HOPELESS:
        return AirflowFailException(
            f"{job} ended with exit code {code}: {_HOPELESS[code]}; a retry cannot help\n{error}"
        )
    known = "was not started" if code is None else f"ended with exit code {code}"
    return AirflowException(f"{job} {known}: worth a retry\n{error}")
