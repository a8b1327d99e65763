"""`make airflow`: starts an Airflow on 127.0.0.1, trains on a generated click log, and makes lists of a day.

Airflow then keeps running. Its state is kept in one folder, and the next start continues with this state.
Ctrl-C ends Airflow and all processes that it started.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from local_airflow.environment import ROOT, environment
from local_airflow.home import Home, free_port, local_variable
from local_airflow.processes import running
from local_airflow.rest import Api
from setup.console import SetupError, fail, say, step

CONFIG = "conf/datasets/generated.yaml"
FIRST_DAY = "2026-01-01"
_WINDOW_DAYS = 5
# A small log: 3 train days, a validation day and a test day, then 3 more days.
SMALL_LOG = [
    f"generate.days={_WINDOW_DAYS + 3}",
    "generate.rows_per_day=8000",
    "generate.users=500",
    "generate.items=150",
    "generate.files_per_day=1",
    "split.train_days=3",
    "output.row_group_rows=2048",
    "train.global_batch_size=512",
    "gate.margin=0.1",
    "gate.lists_margin=0.1",
]
_RUN_MAY_TAKE_S = 1200


def main(argv: list[str] | None = None) -> int:
    """Runs `make airflow` and returns the exit code."""
    arguments = _parser().parse_args(argv)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: _interrupt(stop))
    try:
        run(arguments, stop)
    except SetupError as error:
        return fail(error)
    except KeyboardInterrupt:
        say("Airflow has ended; the next start continues with its state")
    return 0


def run(arguments: argparse.Namespace, stop: threading.Event) -> None:
    """Starts Airflow, runs the DAGs for one day unless the lists of this day exist, and waits for Ctrl-C."""
    folder = Path(arguments.folder).resolve()
    airflow_environment = environment()
    overrides = [*SMALL_LOG, f"lake={folder}/lake"]
    variable = local_variable(CONFIG, overrides)
    if not (folder / f"lake/raw/dt={FIRST_DAY}/_MANIFEST.json").exists():
        with step("generating a click log"):
            generate(variable)
    connections = {"spark_default": {"conn_type": "spark", "host": arguments.master}}
    home = Home(
        folder, arguments.port or free_port(), variable, connections, os.environ.get("AIRFLOW_DATABASE")
    )
    with step("starting scheduler, DAG processor, triggerer and API server"):
        context = running(airflow_environment, home)
        api = context.__enter__()
    try:
        say(f"    {home.url}")
        day = (date.fromisoformat(FIRST_DAY) + timedelta(days=_WINDOW_DAYS - 1)).isoformat()
        if not (folder / f"lake/recommendations/dt={day}/_MANIFEST.json").exists():
            run_dag(api, "weekly_training", {"run_date": day})
            run_dag(api, "daily_recommendations", {"run_date": day})
        say(f"the lists of {day} are in {folder}/lake/recommendations/dt={day}")
        if not arguments.once:
            say(f"open {home.url} in a browser; Ctrl-C ends Airflow")
            stop.wait()
    finally:
        say("ending Airflow")
        context.__exit__(None, None, None)


def generate(variable: Mapping[str, Any]) -> None:
    """Generates the click log with the job generate_clicks."""
    words = ["--config", variable["config"], "--run-date", FIRST_DAY]
    for override in variable["set"]:
        words += ["--set", override]
    command = [variable["spark_submit"], "--properties-file", variable["profiles"]["default"]]
    done = subprocess.run(
        [*command, "jobs/generate_clicks.py", *words],
        cwd=ROOT,
        env={**os.environ, **variable["environment"]},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SetupError(f"generate_clicks ended with {done.returncode}:\n{done.stderr[-2000:]}")


def run_dag(api: Api, dag: str, conf: Mapping[str, Any]) -> None:
    """Runs a DAG to its end and prints the seconds of each task.

    Raises:
        SetupError: the run failed. The message names the failed tasks.
    """
    with step(f"{dag} {json.dumps(dict(conf))}"):
        run_id = api.trigger(dag, conf)
        state = api.wait(dag, run_id, _RUN_MAY_TAKE_S)
        tasks = api.tasks(dag, run_id)
        for name, task in sorted(tasks.items(), key=lambda item: item[1]["start_date"] or ""):
            say(f"    {name:<24} {task['state']:<16} {task['duration'] or 0:6.1f} s")
    if state != "success":
        failed = [name for name, task in tasks.items() if task["state"] == "failed"]
        raise SetupError(f"{dag} failed in {failed}: read their logs at {api.url}/dags/{dag}")


def _interrupt(stop: threading.Event) -> None:
    if stop.is_set():
        return  # a second Ctrl-C must not interrupt the shutdown
    stop.set()
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make airflow",
        description=__doc__,
        epilog="Set AIRFLOW_DATABASE=postgresql+psycopg2://… to keep Airflow's state in PostgreSQL.",
    )
    parser.add_argument(
        "--folder", default=".airflow", help="folder for all state (default: %(default)s, in the checkout)"
    )
    parser.add_argument("--port", type=int, help="port of the UI on 127.0.0.1 (default: a free one)")
    parser.add_argument("--master", default="local[2]", help="Spark master (default: %(default)s)")
    parser.add_argument("--once", action="store_true", help="end when the lists of the day are made")
    return parser


if __name__ == "__main__":
    sys.exit(main())
