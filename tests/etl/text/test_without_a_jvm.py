"""`python jobs/build_features.py` needs no Java; its errors and what a kill leaves are those of other jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conf.errors import EXIT_CONFIG, EXIT_DATA, EXIT_OK
from conf.load import load_config
from conf.types import Config
from jobs.reference.roads import starts_jvm
from spark.workers import LocalWorkers
from storage.dataset import read_dataset
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths
from tests.etl import cases
from tests.etl.prepare.small_shop import no_session
from tests.processes import ROOT, environment, wait_for, wait_until_gone

pytestmark = pytest.mark.processes

DAYS = ["2026-01-01", "2026-01-02", "2026-01-03"]
GROUPS: dict[str, Any] = {
    "features": [
        {"columns": ["I1", "I2"], "kind": "dense", "ops": ["fill_median", "winsorize", "normalize"]},
        {"columns": ["C1", "item"], "kind": "categorical", "ops": ["categorify"]},
    ],
    "scopes": {"user": [], "item": ["item"]},
}


def without_java(folder: Path) -> dict[str, str]:
    """An environment in which a JVM cannot start, with a folder for temporary files."""
    (folder / "java").mkdir(exist_ok=True)
    (folder / "temporary").mkdir(exist_ok=True)
    variables = {**environment(), "JAVA_HOME": str(folder / "java"), "TMPDIR": str(folder / "temporary")}
    variables.pop("PYSPARK_SUBMIT_ARGS", None)
    return variables


def command(folder: Path) -> list[str]:
    options = ["--config", str(folder / "config.yaml"), "--run-date", DAYS[-1]]
    return [sys.executable, "jobs/build_features.py", *options]


def build(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    run = subprocess.run(
        command(folder),
        env={**without_java(folder), **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in run.stderr
    return run


def build_here(config: Config) -> dict[str, Any]:
    """Builds in this process, without a session, what the job builds without a JVM. Returns the tables."""
    assert not starts_jvm(config)
    cases.run_build(LocalWorkers(2, no_session), config, DAYS[-1])
    return tables(LakePaths(config.lake))


def write_log(folder: Path, rows: int, changes: Mapping[str, Any] = {}) -> LakePaths:
    config = cases.write_config(folder, GROUPS, changes)
    for seed, day in enumerate(DAYS):
        cases.write_day(folder / f"raw/dt={day}", cases.make_lines(day, rows, seed))
    return LakePaths(config.lake)


def tables(lake: LakePaths) -> dict[str, Any]:
    """The published rows that a dataset consists of, without the folder of the raw log."""
    dataset = read_dataset(lake, DAYS[-1])
    rows: dict[str, Any] = {}
    for day in DAYS:
        for name, table in (
            ("features", lake.features(dataset.workflow_version)),
            ("quarantine", lake.quarantine),
        ):
            partition = table.partition(day)
            files = data_files(partition, read_manifest(partition))
            found = pa.concat_tables(pq.read_table(path, partitioning=None) for path in files)
            kept = [name for name in found.column_names if name != "source_file"]
            rows[f"{name} {day}"] = found.select(kept).sort_by("row_id").to_pylist()
    return rows


def test_it_ends_well_where_a_jvm_cannot_start(tmp_path: Path) -> None:
    lake = write_log(tmp_path, 120)
    run = build(tmp_path)
    assert run.returncode == EXIT_OK, run.stderr[-2000:]
    summary = json.loads(run.stdout)
    read = sum(len(cases.make_lines(day, 120, seed)) for seed, day in enumerate(DAYS))
    assert summary["rows_in"] == read
    assert summary["rows_in"] == summary["rows_out"] + sum(summary["dropped"].values())
    assert len(read_dataset(lake, DAYS[-1]).days) == 3
    left = [path for path in (tmp_path / "temporary").rglob("*") if path.is_file()]
    assert left == []


def test_the_engine_arrow_starts_a_jvm(tmp_path: Path) -> None:
    """So this job fails where the job above ends well."""
    write_log(tmp_path, 30, {"workflow": {"engine": "arrow"}})
    run = subprocess.run(
        command(tmp_path), env=without_java(tmp_path), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode != EXIT_OK
    assert "java" in run.stderr


def test_a_damaged_file_is_named_without_a_stack_trace(tmp_path: Path) -> None:
    write_log(tmp_path, 60)
    damaged = tmp_path / f"raw/dt={DAYS[1]}/b.tsv.gz"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    run = build(tmp_path)
    assert run.returncode == EXIT_DATA
    assert str(damaged) in run.stderr
    assert "what to do:" in run.stderr


def test_an_id_of_type_float_is_refused(tmp_path: Path) -> None:
    columns = [
        {**column, "type": "float"} if column["name"] == "user" else column
        for column in cases.LOG["log"]["columns"]
    ]
    cases_config = {**cases.LOG, **GROUPS, "log": {**cases.LOG["log"], "columns": columns}}
    (tmp_path / "config.yaml").write_text(json.dumps({**cases_config, "lake": f"{tmp_path}/lake"}))
    run = build(tmp_path)
    assert run.returncode == EXIT_CONFIG
    assert "'user', which has the type float" in run.stderr


def test_a_killed_job_leaves_no_process_and_the_next_one_ends_its_work(tmp_path: Path) -> None:
    peace, kills = tmp_path / "peace", tmp_path / "kills"
    for folder in (peace, kills):
        folder.mkdir()
    write_log(peace, 2_000)
    expected = build_here(load_config(str(peace / "config.yaml")))
    lake = write_log(kills, 2_000)
    job = subprocess.Popen(
        command(kills), env=without_java(kills), cwd=ROOT, stderr=subprocess.PIPE, start_new_session=True
    )
    others = psutil.Process(job.pid).children
    wait_for("workers", lambda: len(others(recursive=True)) >= 4)  # tracker, server, and two workers
    children = [child.pid for child in others(recursive=True)]
    os.kill(job.pid, signal.SIGKILL)
    job.communicate()
    wait_until_gone(children)
    assert [*(kills / "temporary").glob("nightrank-*/workers-*")] != []
    assert build(kills).returncode == EXIT_OK
    assert [path for path in (kills / "temporary").rglob("*") if path.is_file()] == []
    assert tables(lake) == expected
