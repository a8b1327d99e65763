"""What a job leaves behind, however it ends; and that no failure to record it is a failure of the job."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conf.errors import ConfigError, DataError, InfrastructureError
from conf.load import load_config
from jobs.chain.launchers import environment
from jobs.runner import run_job
from reporting.monitoring.run_observer import Observer
from reporting.monitoring.run_record import RunRecord, read_records
from storage.job_summary import JobSummary
from storage.manifest import Manifest, replace_manifest
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.reporting.monitoring.openlineage import assert_valid

RUN_DATE = "2026-01-08"
ROOT = Path(__file__).parents[3]


def arguments(lake: Path, *more: str) -> list[str]:
    settings = [f"lake={lake}", *more]
    words = [word for setting in settings for word in ("--set", setting)]
    return ["--config", "conf/datasets/generated.yaml", "--run-date", RUN_DATE, *words]


def ended(body: Callable[[RunContext], JobSummary], words: list[str]) -> int:
    with pytest.raises(SystemExit) as caught:
        run_job("score_daily", "", body, words)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def only_record(lake: Path) -> RunRecord:
    (record,) = read_records(LakePaths(str(lake)), [RUN_DATE])
    return record


def work(job: RunContext) -> JobSummary:
    with job.phase("count"):
        log = logging.getLogger("nightrank.somewhere")
        for number in range(25):
            log.warning("warning %d", number)
        log.info("no warning")
    partition = job.lake.scores.partition(job.run_date)
    replace_manifest(partition, Manifest(partition.table, partition.dt, (), (), {}))
    return JobSummary(output="out", rows_in=10, rows_out=9, dropped={"bad": 1}, facts={"coverage": 0.5})


def test_a_job_that_is_done_leaves_its_closing_line_as_a_row(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master local[3] pyspark-shell")
    assert ended(work, arguments(tmp_path, "watch.core_hour_price=3.6", "watch.currency=CHF")) == 0
    record, summary = only_record(tmp_path), json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (record.job, record.config, record.exit_code, record.error) == (
        "score_daily",
        "generated",
        0,
        None,
    )
    assert (record.rows_in, record.rows_out, record.dropped, record.output) == (10, 9, {"bad": 1}, "out")
    assert record.facts == {"coverage": summary["coverage"]}
    assert set(record.phases) == {"count"} == set(summary["seconds"]) - {"total"}
    assert record.seconds <= summary["seconds"]["total"]
    assert (record.warning_count, len(record.warnings), record.warnings[0]) == (25, 20, "warning 0")
    assert (record.spark, list(record.stages)) == (None, [])
    assert record.core_s == pytest.approx(3 * record.seconds)
    assert record.currency == "CHF"
    assert record.cost == pytest.approx(record.core_s / 1000, abs=1e-6)
    assert_valid(record.lineage)
    assert record.lineage["eventType"] == "COMPLETE"
    assert [output["name"] for output in record.lineage["outputs"]] == [f"{tmp_path}/scores/dt={RUN_DATE}"]


def test_a_job_without_a_session_counts_one_core_where_tasks_run_on_other_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master spark://head:7077 pyspark-shell")
    assert ended(work, arguments(tmp_path)) == 0
    record = only_record(tmp_path)
    assert record.core_s == record.seconds


@pytest.mark.parametrize(
    "error, code, kind, message",
    [
        (ConfigError("wrong key", "mend it"), 2, "ConfigError", "wrong key"),
        (DataError("empty day", "deliver it"), 3, "DataError", "empty day"),
        (InfrastructureError("lost rank", "again"), 4, "InfrastructureError", "lost rank"),
        (OSError(28, "No space left on device"), 4, "OSError", "[Errno 28] No space left on device"),
    ],
)
def test_a_job_that_fails_leaves_its_exit_code_and_its_error(
    tmp_path: Path, error: Exception, code: int, kind: str, message: str
) -> None:
    def body(_: RunContext) -> JobSummary:
        raise error

    assert ended(body, arguments(tmp_path)) == code
    record = only_record(tmp_path)
    assert (record.exit_code, record.failed) == (code, True)
    assert record.error is not None
    assert (record.error["kind"], record.error["problem"]) == (kind, message)
    assert_valid(record.lineage)
    assert record.lineage["eventType"] == "FAIL"
    assert record.lineage["run"]["facets"]["errorMessage"]["message"] == message


def test_a_defect_ends_the_process_as_ever_and_is_recorded(tmp_path: Path) -> None:
    def body(_: RunContext) -> JobSummary:
        raise ZeroDivisionError("a defect")

    with pytest.raises(ZeroDivisionError):
        run_job("score_daily", "", body, arguments(tmp_path))
    record = only_record(tmp_path)
    assert (record.exit_code, (record.error or {})["kind"]) == (1, "ZeroDivisionError")


def test_an_interruption_is_recorded_with_its_exit_code(tmp_path: Path) -> None:
    def body(_: RunContext) -> JobSummary:
        raise KeyboardInterrupt

    assert ended(body, arguments(tmp_path)) == 130
    record = only_record(tmp_path)
    assert (record.exit_code, (record.error or {})["kind"]) == (130, "KeyboardInterrupt")


def test_a_result_that_is_no_json_is_not_recorded_as_done(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        run_job(
            "score_daily", "", lambda _: JobSummary("out", facts={"auc": float("nan")}), arguments(tmp_path)
        )
    assert only_record(tmp_path).exit_code == 1


def test_a_wrong_operator_is_recorded_too(tmp_path: Path) -> None:
    wrong = "features=[{columns: [I1], kind: dense, ops: [sqrt]}]"
    assert ended(work, arguments(tmp_path, wrong)) == 2
    assert "sqrt" in (only_record(tmp_path).error or {})["problem"]


def test_a_retry_adds_a_row(tmp_path: Path) -> None:
    assert [ended(work, arguments(tmp_path)) for _ in range(2)] == [0, 0]
    first, second = read_records(LakePaths(str(tmp_path)), [RUN_DATE])
    assert first.run_id != second.run_id


def test_an_attempt_that_left_its_row_gets_no_other_one(tmp_path: Path) -> None:
    """Times in rows are cut to seconds; the attempt begins at the end of a second and fails in the next one."""
    lake = str(tmp_path)
    config = load_config("conf/datasets/generated.yaml", [f"lake={lake}"])
    nightly = Observer.begin("nightly", config, RUN_DATE, waits=True)
    stage = Observer.begin("score_daily", config, RUN_DATE)
    stage.started_s = 1_767_927_600.97
    error = InfrastructureError("the disk is full", "free space")
    stage.end(4, {}, None, error)
    nightly.record_silent("score_daily", RUN_DATE, 1_767_927_600.95, 0.1, error)
    assert [record.job for record in read_records(LakePaths(lake), [RUN_DATE])] == ["score_daily"]
    # The next attempt is killed, and so are an attempt of another job and one of another date.
    nightly.record_silent("score_daily", RUN_DATE, 1_767_927_601.05, 0.1, error)
    nightly.record_silent("report", RUN_DATE, 1_767_927_600.95, 0.1, error)
    nightly.record_silent("score_daily", "2026-01-09", 1_767_927_600.95, 0.1, error)
    records = read_records(LakePaths(lake), [RUN_DATE, "2026-01-09"])
    nightly.end(4, {}, None, error)  # it stops collecting warnings
    assert sorted((record.job, record.run_date) for record in records) == [
        ("report", RUN_DATE),
        ("score_daily", RUN_DATE),
        ("score_daily", RUN_DATE),
        ("score_daily", "2026-01-09"),
    ]


@pytest.mark.parametrize("spoilt", ["runs", "metrics", "gateway"])
def test_a_job_that_cannot_be_recorded_is_done_all_the_same(tmp_path: Path, capsys: Any, spoilt: str) -> None:
    settings = []
    (tmp_path / "lake").mkdir()
    (tmp_path / "file").touch()
    if spoilt == "runs":
        (tmp_path / "lake/runs").touch()
    elif spoilt == "metrics":
        settings = [f"watch.textfile_folder={tmp_path}/file"]
    else:
        settings = ["watch.push_gateway=http://127.0.0.1:9"]
    assert ended(work, arguments(tmp_path / "lake", *settings)) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[-1])["rows_out"] == 9
    message = "this run is not recorded" if spoilt == "runs" else "the metrics of this run are not exported"
    assert message in captured.err
    assert (spoilt == "runs") != bool((tmp_path / "lake/runs").is_dir())


_BODY = """
import sys, time
from pathlib import Path
from jobs.runner import run_job
def body(job):
    job.lake.scores
    Path(sys.argv.pop()).touch()
    time.sleep(600)
run_job("score_daily", "", body, sys.argv[1:-1])
"""


@pytest.mark.processes
def test_a_job_that_is_killed_leaves_no_row_and_its_rerun_one(tmp_path: Path) -> None:
    ready, words = tmp_path / "ready", arguments(tmp_path / "lake")
    command = [sys.executable, "-c", _BODY, *words, str(ready)]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + 60
        while not ready.exists():
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert read_records(LakePaths(str(tmp_path / "lake")), [RUN_DATE]) == []
    assert ended(work, words) == 0
    assert len(read_records(LakePaths(str(tmp_path / "lake")), [RUN_DATE])) == 1
