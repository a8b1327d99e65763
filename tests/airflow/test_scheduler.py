"""Days on a real scheduler, DAG processor, triggerer and API server, with real jobs: back-fill, rerun, ends of every kind."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from local_airflow.rest import Api
from tests.airflow.world import BACKFILLED, BAD, TRAINED, Alerts, World

DAILY, WEEKLY, BACKFILL = "daily_recommendations", "weekly_training", "backfill_recommendations"
PATIENCE_S = 1200
pytestmark = pytest.mark.timeout(1500)


# Tables of which a rerun over equal inputs leaves the very files alone; others are written anew, with equal rows.
LEFT_ALONE = ("quarantine", "value_counts", "profiles", "features", "users", "items", "raw")


def published(world: World) -> dict[str, tuple[str, list[str]]]:
    """table/dt=… → digest of its content, and the files of what a rerun leaves alone, of everything that has a manifest."""
    found = {}
    for path in sorted(world.lake.rglob("_MANIFEST.json")):
        manifest = json.loads(path.read_text())
        name = str(path.parent.relative_to(world.lake))
        files = [each["path"] for each in manifest["files"]] if name.startswith(LEFT_ALONE) else []
        found[name] = (manifest["digest"], files)
    return found


def rows_of_lists(world: World, day: str) -> pa.Table:
    folder = world.lake / f"recommendations/dt={day}"
    files = [folder / each["path"] for each in lists(world, day)["files"]]
    return pa.concat_tables(pq.ParquetFile(path).read() for path in files)


def lists(world: World, day: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((world.lake / f"recommendations/dt={day}/_MANIFEST.json").read_text())
    return found


@pytest.fixture(scope="module")
def backfilled(api: Api) -> dict[str, Any]:
    """The tasks of a back-fill of three days."""
    asked = {"from": BACKFILLED[0], "to": BACKFILLED[-1], "when_published": "skip"}
    run = api.trigger(BACKFILL, asked)
    assert api.wait(BACKFILL, run, PATIENCE_S) == "success"
    return api.tasks(BACKFILL, run)


def test_three_days_are_made_one_after_the_other(world: World, backfilled: dict[str, Any]) -> None:
    nights = [backfilled[f"night[{index}]"] for index in range(3)]
    for before, after in pairwise(nights):
        assert before["end_date"] <= after["start_date"]
    for day in BACKFILLED:
        manifest = lists(world, day)
        assert manifest["rows"] == manifest["facts"]["users"] * 10 > 0
        assert (world.lake / f"reports/{day}.html").stat().st_size > 10_000
    # Each day has measured the lists of the one before.
    measured = sorted(path.name for path in (world.lake / "measures").glob("dt=*"))
    assert measured == [f"dt={day}" for day in (TRAINED, *BACKFILLED[:-1])]


def test_the_lists_asset_names_the_model_and_when_it_was_promoted(
    api: Api, world: World, backfilled: dict[str, Any]
) -> None:
    events = api.get("/assets/events?limit=100")["asset_events"]
    told = {each["extra"]["run_date"]: each["extra"] for each in events if "digest" in each["extra"]}
    assert set(BACKFILLED) <= set(told)
    for day in BACKFILLED:
        assert told[day]["model_version"] == lists(world, day)["facts"]["model_version"]
        assert told[day]["promoted_on"] == TRAINED


def test_a_rerun_with_killed_and_failing_stages_and_a_lost_executor_keeps_a_training_waiting_and_changes_nothing(
    api: Api, world: World, backfilled: dict[str, Any], alerts: Alerts
) -> None:
    day = BACKFILLED[-1]
    before, rows = published(world), rows_of_lists(world, day)
    world.fate("build_candidates", "kill")
    world.fate("report", "4", "134")
    run = api.trigger(DAILY, {"run_date": day})
    wait_for(lambda: api.tasks(DAILY, run)["raw_log"]["state"] == "success")
    training = api.trigger(WEEKLY, {"run_date": day})
    wait_for(lambda: api.tasks(WEEKLY, training)["turn"]["state"] == "up_for_reschedule")
    api.patch(f"/dags/{WEEKLY}/dagRuns/{quote(training)}", {"state": "failed"})
    assert "daily_recommendations is at work in 1 runs" in api.log(WEEKLY, training, "turn", 1)
    kill_an_executor_of(world, api, run, "score_daily")
    assert api.wait(DAILY, run, PATIENCE_S) == "success"
    assert "Lost executor" in api.log(DAILY, run, "score_daily", 1)
    tasks = api.tasks(DAILY, run)
    tries = {name: task["try_number"] for name, task in tasks.items() if task["state"] == "success"}
    del tries["night_is_done"]  # runs nowhere
    assert tries.pop("build_candidates") == 2
    assert tries.pop("report") == 3
    assert set(tries.values()) == {1}
    assert published(world) == before
    assert rows_of_lists(world, day).equals(rows)
    assert alerts.of(run=run) == []


def test_bad_data_fails_at_once_is_told_and_still_has_its_report(
    api: Api, world: World, backfilled: dict[str, Any], alerts: Alerts
) -> None:
    break_log(world.lake, BAD)
    run = api.trigger(DAILY, {"run_date": BAD})
    assert api.wait(DAILY, run, PATIENCE_S) == "failed"
    tasks = api.tasks(DAILY, run)
    assert (tasks["quality_gate"]["state"], tasks["quality_gate"]["try_number"]) == ("failed", 1)
    assert tasks["build_features"]["state"] == "upstream_failed"
    assert (tasks["report"]["state"], tasks["night_is_done"]["state"]) == ("success", "upstream_failed")
    assert not (world.lake / f"recommendations/dt={BAD}").exists()
    assert (world.lake / f"reports/{BAD}.html").exists()
    told = alerts.of(run=run)
    assert [(each["kind"], each["task"]) for each in told] == [("task_failed", "quality_gate")]
    assert "check_quality ended with exit code 3: bad data" in told[0]["text"]
    said = api.log(DAILY, run, "quality_gate", 1)
    assert "what to do" in said
    assert "quality.max_bad_share" in said


def test_a_wrong_setting_fails_at_once_and_a_run_without_a_day_says_what_it_needs(
    api: Api, backfilled: dict[str, Any]
) -> None:
    for conf, said in (
        ({"run_date": TRAINED, "set": ["gate.kk=3"]}, "unknown key gate.kk=3"),
        ({}, "neither a Param run_date nor a partition key"),
    ):
        run = api.trigger(DAILY, conf)
        assert api.wait(DAILY, run, PATIENCE_S) == "failed"
        task = api.tasks(DAILY, run)["raw_log"]
        assert (task["state"], task["try_number"]) == ("failed", 1)
        assert said in api.log(DAILY, run, "raw_log", 1)


def test_a_partition_key_is_the_run_date_and_a_published_day_is_skipped(
    api: Api, backfilled: dict[str, Any]
) -> None:
    run = api.trigger(DAILY, {"when_published": "skip"}, partition_key=TRAINED)
    assert api.wait(DAILY, run, PATIENCE_S) == "success"
    assert f"the lists of {TRAINED} are published" in api.log(DAILY, run, "raw_log", 1)
    states = {name: task["state"] for name, task in api.tasks(DAILY, run).items()}
    ran = {name for name, state in states.items() if state == "success"}
    assert ran == {"turn", "raw_log", "night_is_done"}
    assert {state for name, state in states.items() if name not in ran} == {"skipped"}


def test_somebody_is_told_when_a_run_is_late(api: Api, world: World, alerts: Alerts) -> None:
    api.patch("/dags/late_night", {"is_paused": False})
    run = api.trigger("late_night", {})
    wait_for(lambda: alerts.of(kind="late", dag="late_night") != [])
    (world.folder / "told").touch()
    assert api.wait("late_night", run, PATIENCE_S) == "success"


def kill_an_executor_of(world: World, api: Api, run: str, task: str) -> None:
    """SIGKILL to the JVM in which a task's job works, once it has begun to work there; a worker starts another."""
    wait_for(lambda: api.tasks(DAILY, run)[task]["state"] == "running", PATIENCE_S, 0.5)
    known = len(world.cluster.applications())  # the job's own comes seconds later
    wait_for(lambda: len(world.cluster.applications()) > known, look_every_s=0.2)
    wait_for(lambda: world.cluster.log_lines("Executor: Running task") != [], look_every_s=0.2)
    world.cluster.executors()[0].kill()


def wait_for(happened: Callable[[], bool], timeout_s: float = 300, look_every_s: float = 1) -> None:
    end = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < end
        time.sleep(look_every_s)


def break_log(lake: Path, day: str) -> None:
    """Takes the tabs out of every second line of a day's raw log: as many bytes, and nothing that parses."""
    for path in (lake / f"raw/dt={day}").glob("*.tsv*"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text(
            "".join(line if number % 2 else line.replace("\t", " ") for number, line in enumerate(lines))
        )
