"""Days with real jobs on a real scheduler, triggerer and API server: back-fill, rerun, failures.

Python starts the jobs, because the master is local. The rerun's jobs run on a cluster, by spark-submit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from local_airflow.rest import Api
from tests.airflow.airflow_setup import (
    BACKFILLED,
    BAD,
    LOCAL_MASTER,
    SPARK,
    TRAINED,
    AirflowSetup,
    Alerts,
)

DAILY, WEEKLY, BACKFILL = "daily_recommendations", "weekly_training", "backfill_recommendations"
PATIENCE_S = 1200
pytestmark = pytest.mark.timeout(1500)


# A rerun over equal inputs leaves the files of these tables alone. It writes other tables again, with equal
# rows.
LEFT_ALONE = ("quarantine", "value_counts", "profiles", "features", "users", "items", "raw")


def published_partitions(airflow_setup: AirflowSetup) -> dict[str, tuple[str, list[str]]]:
    """`<table>/dt=…` of all partitions → digest of its manifest, and files that a rerun leaves alone."""
    partitions = {}
    for path in sorted(airflow_setup.lake.rglob("_MANIFEST.json")):
        manifest = json.loads(path.read_text())
        name = str(path.parent.relative_to(airflow_setup.lake))
        files = [file["path"] for file in manifest["files"]] if name.startswith(LEFT_ALONE) else []
        partitions[name] = (manifest["digest"], files)
    return partitions


def rows_of_lists(airflow_setup: AirflowSetup, day: str) -> pa.Table:
    folder = airflow_setup.lake / f"recommendations/dt={day}"
    files = [folder / file["path"] for file in lists_manifest(airflow_setup, day)["files"]]
    return pa.concat_tables(pq.ParquetFile(path).read() for path in files)


def lists_manifest(airflow_setup: AirflowSetup, day: str) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(
        (airflow_setup.lake / f"recommendations/dt={day}/_MANIFEST.json").read_text()
    )
    return manifest


@pytest.fixture(scope="module")
def backfilled(api: Api) -> dict[str, Any]:
    """The tasks of a back-fill of three days."""
    params = {"from": BACKFILLED[0], "to": BACKFILLED[-1], "when_published": "skip"}
    run = api.trigger(BACKFILL, params)
    assert api.wait(BACKFILL, run, PATIENCE_S) == "success"
    return api.tasks(BACKFILL, run)


def test_backfill_runs_its_days_in_order(
    api: Api, airflow_setup: AirflowSetup, backfilled: dict[str, Any]
) -> None:
    runs = [backfilled[f"night[{index}]"] for index in range(3)]
    run = runs[0]["dag_run_id"]
    for before, after in pairwise(runs):
        assert before["end_date"] <= after["start_date"]
    for day in BACKFILLED:
        manifest = lists_manifest(airflow_setup, day)
        assert manifest["rows"] == manifest["facts"]["users"] * 10 > 0
        assert (airflow_setup.lake / f"reports/{day}.html").stat().st_size > 10_000
        assert "starts without a JVM" in api.log(DAILY, f"{run}__{day}", "score_daily", 1)
    # Each day has measured the lists of the one before.
    measured = sorted(path.name for path in (airflow_setup.lake / "measures").glob("dt=*"))
    assert measured == [f"dt={day}" for day in (TRAINED, *BACKFILLED[:-1])]


def test_asset_of_lists_names_the_model_and_its_promotion_date(
    api: Api, airflow_setup: AirflowSetup, backfilled: dict[str, Any]
) -> None:
    events = api.get("/assets/events?limit=100")["asset_events"]
    lists = {event["extra"]["run_date"]: event["extra"] for event in events if "digest" in event["extra"]}
    assert set(BACKFILLED) <= set(lists)
    for day in BACKFILLED:
        assert lists[day]["model_version"] == lists_manifest(airflow_setup, day)["facts"]["model_version"]
        assert lists[day]["promoted_on"] == TRAINED


def test_rerun_with_failures_changes_nothing_and_a_training_waits_for_it(
    api: Api, airflow_setup: AirflowSetup, backfilled: dict[str, Any], alerts: Alerts
) -> None:
    day = BACKFILLED[-1]
    use_master(api, airflow_setup.cluster.master)
    before, rows = published_partitions(airflow_setup), rows_of_lists(airflow_setup, day)
    airflow_setup.plan_ends("build_candidates", "kill")
    airflow_setup.plan_ends("report", "4", "134")
    run = api.trigger(DAILY, {"run_date": day})
    wait_for(lambda: api.tasks(DAILY, run)["raw_log"]["state"] == "success")
    training = api.trigger(WEEKLY, {"run_date": day})
    wait_for(lambda: api.tasks(WEEKLY, training)["wait_for_other_dag"]["state"] == "up_for_reschedule")
    api.patch(f"/dags/{WEEKLY}/dagRuns/{quote(training)}", {"state": "failed"})
    log = api.log(WEEKLY, training, "wait_for_other_dag", 1)
    assert "waiting for 1 active runs of daily_recommendations" in log
    kill_an_executor_of(airflow_setup, api, run, "score_daily")
    assert api.wait(DAILY, run, PATIENCE_S) == "success"
    use_master(api, LOCAL_MASTER)
    log = api.log(DAILY, run, "score_daily", 1)
    assert "Lost executor" in log
    assert "starts without a JVM" not in log
    tasks = api.tasks(DAILY, run)
    tries = {name: task["try_number"] for name, task in tasks.items() if task["state"] == "success"}
    del tries["night_is_done"]  # runs nowhere
    assert tries.pop("build_candidates") == 2
    assert tries.pop("report") == 3
    assert set(tries.values()) == {1}
    assert published_partitions(airflow_setup) == before
    again = rows_of_lists(airflow_setup, day)
    assert again.drop_columns(["score"]).equals(rows.drop_columns(["score"]))
    # A process and the tasks of a cluster multiply matrices of different sizes, so scores may be rounded differently.
    np.testing.assert_allclose(again["score"].to_numpy(), rows["score"].to_numpy(), rtol=0, atol=1e-6)
    assert alerts.of(run=run) == []


def test_bad_data_fails_at_once_sends_an_alert_and_has_a_report(
    api: Api, airflow_setup: AirflowSetup, backfilled: dict[str, Any], alerts: Alerts
) -> None:
    break_log(airflow_setup.lake, BAD)
    run = api.trigger(DAILY, {"run_date": BAD})
    assert api.wait(DAILY, run, PATIENCE_S) == "failed"
    tasks = api.tasks(DAILY, run)
    assert (tasks["quality_gate"]["state"], tasks["quality_gate"]["try_number"]) == ("failed", 1)
    assert tasks["build_features"]["state"] == "upstream_failed"
    assert (tasks["report"]["state"], tasks["night_is_done"]["state"]) == ("success", "upstream_failed")
    assert not (airflow_setup.lake / f"recommendations/dt={BAD}").exists()
    assert (airflow_setup.lake / f"reports/{BAD}.html").exists()
    sent = alerts.of(run=run)
    assert [(alert["kind"], alert["task"]) for alert in sent] == [("task_failed", "quality_gate")]
    assert "check_quality ended with exit code 3: bad data" in sent[0]["text"]
    log = api.log(DAILY, run, "quality_gate", 1)
    assert "what to do" in log
    assert "quality.max_bad_share" in log


def test_wrong_setting_and_missing_run_date_fail_at_once(api: Api, backfilled: dict[str, Any]) -> None:
    for conf, message in (
        ({"run_date": TRAINED, "set": ["gate.kk=3"]}, "unknown key gate.kk=3"),
        ({}, "neither a Param run_date nor a partition key"),
    ):
        run = api.trigger(DAILY, conf)
        assert api.wait(DAILY, run, PATIENCE_S) == "failed"
        task = api.tasks(DAILY, run)["raw_log"]
        assert (task["state"], task["try_number"]) == ("failed", 1)
        assert message in api.log(DAILY, run, "raw_log", 1)


def test_partition_key_is_the_run_date_and_a_published_day_is_skipped(
    api: Api, backfilled: dict[str, Any]
) -> None:
    run = api.trigger(DAILY, {"when_published": "skip"}, partition_key=TRAINED)
    assert api.wait(DAILY, run, PATIENCE_S) == "success"
    assert f"the lists of {TRAINED} are published" in api.log(DAILY, run, "raw_log", 1)
    states = {name: task["state"] for name, task in api.tasks(DAILY, run).items()}
    ran = {name for name, state in states.items() if state == "success"}
    assert ran == {"wait_for_other_dag", "raw_log", "night_is_done"}
    assert {state for name, state in states.items() if name not in ran} == {"skipped"}


def test_late_run_sends_an_alert(api: Api, airflow_setup: AirflowSetup, alerts: Alerts) -> None:
    api.patch("/dags/late_run", {"is_paused": False})
    run = api.trigger("late_run", {})
    wait_for(lambda: alerts.of(kind="late", dag="late_run") != [])
    (airflow_setup.folder / "late_run_may_end").touch()
    assert api.wait("late_run", run, PATIENCE_S) == "success"


def use_master(api: Api, master: str) -> None:
    """Changes the master of the jobs that start from now on."""
    connection = {"connection_id": SPARK, "conn_type": "spark", "host": master}
    api.patch(f"/connections/{SPARK}", connection)


def kill_an_executor_of(airflow_setup: AirflowSetup, api: Api, run: str, task: str) -> None:
    """Kills the executor of a task's job with SIGKILL after it has begun to work.

    The worker starts another.
    """
    wait_for(lambda: api.tasks(DAILY, run)[task]["state"] == "running", PATIENCE_S, 0.5)
    known = len(airflow_setup.cluster.applications())  # the application of this job starts seconds later
    wait_for(lambda: len(airflow_setup.cluster.applications()) > known, look_every_s=0.2)
    wait_for(lambda: airflow_setup.cluster.log_lines("Executor: Running task") != [], look_every_s=0.2)
    airflow_setup.cluster.executors()[0].kill()


def wait_for(happened: Callable[[], bool], timeout_s: float = 300, look_every_s: float = 1) -> None:
    end = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < end
        time.sleep(look_every_s)


def break_log(lake: Path, day: str) -> None:
    """Replaces the tabs in every second line of a day's raw log, so that these lines do not parse.

    The size stays.
    """
    for path in (lake / f"raw/dt={day}").glob("*.tsv*"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text(
            "".join(line if number % 2 else line.replace("\t", " ") for number, line in enumerate(lines))
        )
