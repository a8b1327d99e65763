"""Runs the checks of a node (setup/doctor) before a job, if the dataset's Variable sets `check_node`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from shutil import which
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_dags.commands import Call, beside, doctor_arguments
from airflow_dags.settings import Settings, spark_master

_TO_CORRECT = 1
_TIMEOUT_S = 300


def check_node(call: Call, settings: Settings, log: Any) -> None:
    """Checks this worker, the Spark profile of a job, and the lake. Logs the findings.

    Raises:
        AirflowException: something must be corrected on this worker. Airflow retries the task, perhaps on
            another worker.
        AirflowFailException: the checks cannot be run with these settings.
    """
    job, command = call.job, _command(call, settings)
    try:
        done = subprocess.run(
            command,
            cwd=settings.home,
            env={**os.environ, **settings.environment, "PYTHONPATH": settings.home},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise AirflowException(
            f"the checks of this worker for {job} took more than {_TIMEOUT_S} s: worth a retry\n"
            f"{error.output or ''}"
        ) from error
    log.info("Checks of this worker for %s:\n%s", job, done.stdout.rstrip())
    if done.returncode == _TO_CORRECT:
        raise AirflowException(
            f"this worker cannot run {job}: worth a retry\n{_wrong_lines(done.stdout)}\n"
            "  what to do: correct what the lines with FIX say, or set check_node to false"
        )
    if done.returncode:
        raise AirflowFailException(
            f"the checks of this worker for {job} ended with exit code {done.returncode}\n"
            f"{done.stdout[-2000:]}"
        )


def _command(call: Call, settings: Settings) -> list[str]:
    """Returns the command of the checks, with the Python interpreter in the folder of spark-submit.

    Raises:
        AirflowException: Airflow returned no Spark connection.
        AirflowFailException: there is no such interpreter, or no folder of the checks.
    """
    master = spark_master(settings)
    submit = which(settings.spark_submit)
    python = None if submit is None else which(beside(submit, "python"))
    if python is None:
        raise AirflowFailException(
            f"check_node needs a program `python` in the folder of {settings.spark_submit}\n"
            "  what to do: use the spark-submit of an environment of `make setup`, or set check_node to false"
        )
    if not (Path(settings.home) / "setup/doctor").is_dir():
        raise AirflowFailException(
            f"check_node needs the folder setup/doctor, which {settings.home} does not have\n"
            "  what to do: use a checkout or the archive of `make dist` as home, or set check_node to false"
        )
    return [python, *doctor_arguments(call, settings, master)]


def _wrong_lines(output: str) -> str:
    """Returns the findings that must be corrected, each with its remedy."""
    kept, wrong = [], False
    for line in output.splitlines():
        if not line.startswith(" "):
            wrong = line.startswith("FIX")
        if wrong:
            kept.append(line)
    return "\n".join(kept)
