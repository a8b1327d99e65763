"""Event logs: on unless the profile says otherwise, and a real job's are what Spark's history server reads."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from jobs.chain.submit import environment, spark_submit
from reporting.monitoring.run_record import read_records
from spark.event_logs import event_log_settings
from storage.paths import Lake
from tests.reporting.monitoring.test_observer import ROOT, RUN_DATE, arguments


def test_a_profile_that_says_nothing_logs_into_the_lake(tmp_path: Path) -> None:
    found = event_log_settings({}.get, str(tmp_path / "lake/spark-events"))
    assert found["spark.eventLog.enabled"] == "true"
    assert found["spark.eventLog.dir"] == f"file://{tmp_path}/lake/spark-events"
    assert found["spark.eventLog.rolling.enabled"] == "true"
    assert found["spark.eventLog.compress"] == "true"
    assert (tmp_path / "lake/spark-events").is_dir()  # Spark does not start without it


def test_what_the_profile_says_stands(tmp_path: Path) -> None:
    off = event_log_settings({"spark.eventLog.enabled": "false"}.get, str(tmp_path / "events"))
    assert off == {}
    given = {"spark.eventLog.dir": "hdfs://x/events", "spark.eventLog.compress": "false"}
    found = event_log_settings(given.get, str(tmp_path / "events"))
    assert "spark.eventLog.dir" not in found
    assert "spark.eventLog.compress" not in found
    assert found["spark.eventLog.rolling.enabled"] == "true"
    assert not (tmp_path / "events").exists()


def test_a_folder_that_cannot_be_made_turns_them_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "lake").touch()
    found = event_log_settings({}.get, str(tmp_path / "lake/spark-events"))
    assert found == {"spark.eventLog.enabled": "false"}
    assert "Spark's events are not logged" in caplog.text


def test_a_real_job_leaves_its_stages_and_its_events(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    sizes = ["generate.days=2", "generate.rows_per_day=200", "generate.users=20", "generate.items=10"]
    command = [str(spark_submit()), "--properties-file", "conf/spark/local.conf", "jobs/generate_clicks.py"]
    done = subprocess.run(
        [*command, *arguments(lake, *sizes)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (found,) = read_records(Lake(str(lake)), [RUN_DATE])
    assert found.spark is not None
    assert found.spark["cores"] == 2
    assert found.spark["tasks"] == sum(stage["tasks"] for stage in found.stages) > 0
    assert found.core_s == found.spark["core_s"] > 0
    (folder,) = (lake / "spark-events").iterdir()
    assert folder.name == f"eventlog_v2_{found.spark['application_id']}"
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    assert f"appstatus_{found.spark['application_id']}" in names  # not .inprogress: the session was stopped
    (written,) = folder.glob("events_1_*.zstd")
    events = [
        json.loads(line) for line in pa.input_stream(str(written), compression="zstd").read().splitlines()
    ]
    kinds = [event["Event"] for event in events]
    assert kinds.count("SparkListenerStageCompleted") == len(found.stages)
    assert kinds[-1] == "SparkListenerApplicationEnd"
