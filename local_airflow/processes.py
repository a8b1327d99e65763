"""Starts the four processes of Airflow, and ends them with all processes that they started."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from local_airflow.home import Home
from local_airflow.rest import Api
from setup.console import SetupError

# The API server runs on the same machine and reads the logs from disk, so no process has to serve the logs.
_COMPONENTS = {
    "api-server": ["api-server"],
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "dag-processor": ["dag-processor"],
    "triggerer": ["triggerer", "--skip-serve-logs"],
}
_PATIENCE_S = 180
_GRACE_S = 15
_LAST_CHARACTERS = 2000
POOL = "nightrank_spark"
DAGS = ("daily_recommendations", "weekly_training", "backfill_recommendations")


def airflow(environment: Path, home: Home, *words: str) -> None:
    """Runs one command of Airflow's CLI. The command's output goes to a log file in <home>/logs.

    Raises:
        SetupError: the command failed. The message contains the end of the command's output.
    """
    log = home.folder / "logs" / f"{words[0]}-{words[1]}.log"
    with log.open("wb") as output:
        command = [str(environment / "bin/airflow"), *words]
        code = subprocess.run(
            command,
            env=home.environment(),
            cwd=home.folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    if code:
        raise SetupError(f"airflow {' '.join(words)} ended with {code}:\n{_end_of(log)}")


@contextmanager
def running(environment: Path, home: Home, spark_slots: int = 1) -> Iterator[Api]:
    """Runs Airflow until the `with` block ends. The DAGs are parsed and not paused.

    Args:
        spark_slots: how many Spark applications may run at the same time (the size of the pool).

    Raises:
        SetupError: a process of Airflow ended, or the DAGs were not parsed in time.
    """
    home.prepare()
    airflow(environment, home, "db", "migrate")
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, words in _COMPONENTS.items():
            with (home.folder / "logs" / f"{name}.log").open("wb") as output:
                started[name] = subprocess.Popen(
                    [str(environment / "bin/airflow"), *words],
                    env=home.environment(),
                    cwd=home.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # so Ctrl-C does not reach it; `_end` ends it
                )
        api = Api(home.url)
        _wait_until_ready(api, home, started)
        make_ready(api, spark_slots)
        yield api
    finally:
        _end(started)


def _wait_until_ready(api: Api, home: Home, started: dict[str, subprocess.Popen[bytes]]) -> None:
    end = time.monotonic() + _PATIENCE_S
    while not (api.answers() and _parsed(api)):
        for name, process in started.items():
            if process.poll() is not None:
                log_end = _end_of(home.folder / "logs" / f"{name}.log")
                raise SetupError(f"airflow {name} ended with {process.returncode}:\n{log_end}")
        if time.monotonic() > end:
            raise SetupError(f"Airflow was not ready after {_PATIENCE_S} s: read {home.folder}/logs")
        time.sleep(0.5)


def make_ready(api: Api, spark_slots: int) -> None:
    """Creates the pool of Spark applications, and unpauses the DAGs."""
    if POOL not in {pool["name"] for pool in api.get("/pools")["pools"]}:
        pool = {"name": POOL, "slots": spark_slots, "description": "Spark applications that run at once"}
        api.post("/pools", pool)
    for dag in DAGS:
        api.patch(f"/dags/{dag}", {"is_paused": False})


def _parsed(api: Api) -> bool:
    errors = api.get("/importErrors")["import_errors"]
    if errors:
        raise SetupError(f"a DAG could not be parsed: {errors[0]['filename']}\n{errors[0]['stack_trace']}")
    return {dag["dag_id"] for dag in api.get("/dags")["dags"]} >= set(DAGS)


def _end(started: dict[str, subprocess.Popen[bytes]]) -> None:
    """Ends the processes of Airflow, then the processes that tasks started and that still run."""
    family: list[psutil.Process] = []
    for process in started.values():
        with contextlib.suppress(psutil.NoSuchProcess):
            family += psutil.Process(process.pid).children(recursive=True)
    for process in started.values():
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    for process in started.values():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_GRACE_S)
    for process in started.values():
        process.kill()
        process.wait()
    for child in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()  # psutil compares start times: it never kills another process with the same id
    psutil.wait_procs(family, timeout=_GRACE_S)


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-_LAST_CHARACTERS:]
