"""Event logs are on unless the profile differs, and Spark's history server can read those of a real job."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from jobs.chain.launchers import environment, spark_submit
from reporting.monitoring.run_record import read_records
from spark.session import event_log_settings
from storage.paths import LakePaths
from tests.reporting.monitoring.test_observer import ROOT, RUN_DATE, arguments


def test_a_profile_that_says_nothing_logs_into_the_lake(tmp_path: Path) -> None:
    settings = event_log_settings({}.get, str(tmp_path / "lake/spark-events"))
    assert settings["spark.eventLog.enabled"] == "true"
    assert settings["spark.eventLog.dir"] == f"file://{tmp_path}/lake/spark-events"
    assert settings["spark.eventLog.rolling.enabled"] == "true"
    assert settings["spark.eventLog.compress"] == "true"
    assert (tmp_path / "lake/spark-events").is_dir()  # Spark does not start without it


def test_a_folder_with_a_space_is_a_valid_uri(tmp_path: Path) -> None:
    settings = event_log_settings({}.get, str(tmp_path / "my lake/100%"))
    assert settings["spark.eventLog.dir"] == f"file://{tmp_path}/my%20lake/100%25"
    assert (tmp_path / "my lake/100%").is_dir()


def test_what_the_profile_says_stands(tmp_path: Path) -> None:
    off = event_log_settings({"spark.eventLog.enabled": "false"}.get, str(tmp_path / "events"))
    assert off == {}
    configured = {"spark.eventLog.dir": "hdfs://x/events", "spark.eventLog.compress": "false"}
    settings = event_log_settings(configured.get, str(tmp_path / "events"))
    assert "spark.eventLog.dir" not in settings
    assert "spark.eventLog.compress" not in settings
    assert settings["spark.eventLog.rolling.enabled"] == "true"
    assert not (tmp_path / "events").exists()


def test_a_folder_that_cannot_be_made_turns_them_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "lake").touch()
    settings = event_log_settings({}.get, str(tmp_path / "lake/spark-events"))
    assert settings == {"spark.eventLog.enabled": "false"}
    assert "Spark's events are not logged" in caplog.text


@pytest.mark.processes
def test_a_real_job_leaves_its_stages_its_events_and_one_line_of_output(tmp_path: Path) -> None:
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
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["job"] == "generate_clicks"
    assert done.stdout == f"{line}\n"
    assert "nightrank: session …" in done.stderr
    assert '"job"' not in done.stderr
    (record,) = read_records(LakePaths(str(lake)), [RUN_DATE])
    assert record.spark is not None
    assert record.spark["cores"] == 2
    assert record.spark["tasks"] == sum(stage["tasks"] for stage in record.stages) > 0
    assert record.core_s == record.spark["core_s"] > 0
    (folder,) = (lake / "spark-events").iterdir()
    assert folder.name == f"eventlog_v2_{record.spark['application_id']}"
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    assert f"appstatus_{record.spark['application_id']}" in names  # not .inprogress: the session was stopped
    (written,) = folder.glob("events_1_*.zstd")
    events = [
        json.loads(line) for line in pa.input_stream(str(written), compression="zstd").read().splitlines()
    ]
    kinds = [event["Event"] for event in events]
    assert kinds.count("SparkListenerStageCompleted") == len(record.stages)
    assert kinds[-1] == "SparkListenerApplicationEnd"
