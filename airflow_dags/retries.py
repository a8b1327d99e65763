"""Decides from a job's exit code whether Airflow retries its task."""

from __future__ import annotations

from airflow.sdk.exceptions import AirflowException, AirflowFailException

_HOPELESS = {2: "bad configuration", 3: "bad data"}


def failure(job: str, code: int | None, error: Exception) -> AirflowException:
    """Returns the exception for a failed job.

    The type of the exception decides whether Airflow retries the task. The task is not retried after exit
    code 2 (bad configuration) or 3 (bad data).
    """
    if code in _HOPELESS:
        return AirflowFailException(
            f"{job} ended with exit code {code}: {_HOPELESS[code]}; a retry cannot help\n{error}"
        )
    known = (
        "was not started, or its exit code is not known" if code is None else f"ended with exit code {code}"
    )
    return AirflowException(f"{job} {known}: worth a retry\n{error}")
