"""Rows of `runs`: whole or not there, one an attempt, whoever else writes; what is no row stops no reader."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from conf.errors import InfrastructureError
from reporting.monitoring.run_record import RunRecord, dates_up_to, read_records, write_record
from storage import file_io
from storage.paths import LakePaths

RUN_DATE = "2026-01-08"


def record(job: str = "score_daily", **values: Any) -> RunRecord:
    columns: dict[str, Any] = {
        "run_id": str(uuid.uuid4()),
        "job": job,
        "config": "shop",
        "run_date": RUN_DATE,
        "started_at": "2026-01-09T03:00:00Z",
        "ended_at": "2026-01-09T03:05:00Z",
        "seconds": 300.0,
        "exit_code": 0,
        "stages": ({"stage_id": 0, "name": "collect at x.py:1", "tasks": 4},),
    }
    return RunRecord(**{**columns, **values})


def test_a_row_comes_back_as_it_was_written(tmp_path: Path) -> None:
    lake = LakePaths(str(tmp_path))
    written = record(
        dropped={"é": 1}, error={"kind": "DataError", "problem": "p", "remedy": "r"}, exit_code=3
    )
    path = Path(write_record(lake, written))
    assert path.parent == tmp_path / f"runs/dt={RUN_DATE}"
    assert path.read_text().count("\n") == 1
    (stored,) = read_records(lake, [RUN_DATE])
    assert stored.to_json() == json.loads(json.dumps(written.to_json()))
    assert stored.failed


def test_jobs_that_end_at_the_same_time_each_leave_their_row(tmp_path: Path) -> None:
    lake, ready = LakePaths(str(tmp_path)), threading.Barrier(12)

    def write() -> None:
        ready.wait()
        for _ in range(10):
            write_record(lake, record())

    threads = [threading.Thread(target=write) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = read_records(lake, [RUN_DATE])
    assert len({run.run_id for run in records}) == 120


def test_rows_are_in_the_order_in_which_runs_began_and_of_the_config_that_is_asked_for(
    tmp_path: Path,
) -> None:
    lake = LakePaths(str(tmp_path))
    write_record(lake, record("report", started_at="2026-01-09T04:00:00Z"))
    write_record(lake, record("build_features", started_at="2026-01-09T02:00:00Z"))
    write_record(lake, record("score_daily", config="other"))
    write_record(lake, record("score_rows", run_date="2026-01-07"))
    records = read_records(lake, ["2026-01-06", "2026-01-07", RUN_DATE], "shop")
    assert [run.job for run in records] == ["build_features", "score_rows", "report"]


def test_what_is_no_row_is_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lake = LakePaths(str(tmp_path))
    path = Path(write_record(lake, record()))
    (path.parent / "half.json").write_text(path.read_text()[:40])
    (path.parent / "changed.json").write_text(path.read_text().replace("300.0", "301.0", 1))
    (path.parent / "other.json").write_text('{"job": "x"}')
    (path.parent / f".{path.name}.0123.tmp").write_text("{")  # a job that was killed while it wrote
    (path.parent / "notes.txt").write_text("mine")
    later = {**file_io.read_json(str(path)), "column_of_a_later_release": 1}
    (path.parent / "later.json").write_text(json.dumps(later))
    with caplog.at_level(logging.WARNING, "nightrank.watch"):
        assert len(read_records(lake, [RUN_DATE])) == 2
    assert sorted(message.split("/")[-1].split()[0] for message in caplog.messages) == [
        "changed.json",
        "half.json",
        "other.json",
    ]


def test_a_folder_of_rows_is_a_table_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    lake = LakePaths(str(tmp_path))
    for job, code in (("build_features", 0), ("score_daily", 3)):
        write_record(lake, record(job, exit_code=code, facts={"coverage": 0.5}))
    table = spark.read.json(str(tmp_path / "runs"))
    rows = {(str(row["dt"]), row["job"], row["exit_code"]) for row in table.collect()}
    assert rows == {(RUN_DATE, "build_features", 0), (RUN_DATE, "score_daily", 3)}
    stages = table.selectExpr("job", "explode(stages) stage").selectExpr("sum(stage.tasks) tasks").first()
    assert stages is not None
    assert stages["tasks"] == 8


def test_a_row_that_cannot_be_written_is_an_infrastructure_error(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(InfrastructureError, match="cannot write"):
        write_record(LakePaths(str(tmp_path)), record())
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_record(LakePaths(str(tmp_path / "elsewhere")), record(facts={"auc": float("nan")}))


def test_dates_end_on_the_run_date_and_cross_months() -> None:
    assert dates_up_to("2026-03-01", 3) == ["2026-02-27", "2026-02-28", "2026-03-01"]
