"""The raw log on a real HDFS: Spark's Hadoop client lists it, Spark reads it, and a lake there is refused."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyspark.sql import SparkSession

from conf.errors import ConfigError
from conf.load import load_config
from etl.raw.compressed import first_bytes
from etl.raw.files import find_raw, require_raw
from setup import jars
from storage import file_io
from storage.dataset import read_spec
from storage.paths import Lake
from tests.etl import cases, oracle, raw_oracle
from tests.etl.lakes import lakes
from tests.etl.lakes.conftest import ObjectStore
from tests.etl.log_rows import read_log

ROOT = Path(__file__).parents[3]
RUN_DATE = "2026-01-03"
DAYS = ["2026-01-01", "2026-01-02", "2026-01-03"]


def _put(spark: SparkSession, folder: Path, to: str) -> None:
    jvm: Any = spark._jvm
    target = jvm.org.apache.hadoop.fs.Path(to)
    files = target.getFileSystem(spark._jsc.hadoopConfiguration())
    files.mkdirs(target.getParent())
    files.copyFromLocalFile(jvm.org.apache.hadoop.fs.Path(str(folder)), target)


def test_a_job_by_spark_submit_from_hdfs_to_an_object_store_equals_the_oracle(
    spark: SparkSession, hdfs: str, object_store: ObjectStore, tmp_path: Path
) -> None:
    """The job opens HDFS before it has a session, and takes credentials from the environment only."""
    roots = {"data": f"{hdfs}/logs/raw", "lake": f"{object_store.root}/submitted"}
    config = cases.write_config(tmp_path, lakes.SMALL, roots, {"workflow": {"engine": "sql"}})
    good = {}
    for seed, day in enumerate(DAYS):
        paths = cases.write_day(tmp_path / f"raw/dt={day}", cases.make_lines(day, 100, seed))
        good[day], _ = raw_oracle.parse_log(config, paths)
    _put(spark, tmp_path / "raw", f"{hdfs}/logs/raw")
    done = _submit(tmp_path / "config.yaml", tmp_path, object_store)
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    lake = Lake(config.lake)
    fitted = oracle.fit(config, good[DAYS[0]])
    spec = read_spec(lake, summary["workflow_version"])
    for day in DAYS:
        rows = lakes.read_rows(lake.features(spec.workflow_version).partition(day))
        cases.assert_features_equal(rows, oracle.encode(config, fitted, good[day]), spec)
    quarantined = lakes.read_rows(lake.quarantine.partition(DAYS[0]))
    assert set(quarantined["source_file"].str.startswith(f"{hdfs}/logs/raw/dt={DAYS[0]}/")) == {True}


def _submit(config: Path, folder: Path, store: ObjectStore) -> subprocess.CompletedProcess[str]:
    command = ["spark-submit", "--properties-file", str(ROOT / "conf/spark/local.conf")]
    command += ["--jars", ",".join(str(jar.path) for jar in jars.s3_client())]
    for key, value in {**store.settings, "spark.local.dir": str(folder)}.items():
        command += ["--conf", f"{key}={value}"]
    command += [str(ROOT / "jobs/build_features.py"), "--config", str(config), "--run-date", RUN_DATE]
    environment = {**os.environ, **store.variables, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)


def test_wildcards_match_as_they_do_on_a_disk(spark: SparkSession, hdfs: str, tmp_path: Path) -> None:
    root = f"{hdfs}/wild"
    lakes.check_wildcards(tmp_path, root, lambda: _put(spark, tmp_path, root))


def test_the_digest_follows_a_replaced_file(spark: SparkSession, hdfs: str, tmp_path: Path) -> None:
    config = cases.write_config(tmp_path, {"data": f"{hdfs}/replaced"})
    (tmp_path / f"raw/dt={RUN_DATE}").mkdir(parents=True)
    (tmp_path / f"raw/dt={RUN_DATE}/a.tsv").write_text("one\n")
    _put(spark, tmp_path / "raw", f"{hdfs}/replaced")
    first = require_raw(config, config.log, RUN_DATE)
    assert require_raw(config, config.log, RUN_DATE).digest == first.digest
    assert first.bytes == 4
    _put(spark, tmp_path / f"raw/dt={RUN_DATE}/a.tsv", f"{hdfs}/replaced/dt={RUN_DATE}/a.tsv")
    assert require_raw(config, config.log, RUN_DATE).digest != first.digest
    assert find_raw(config, config.log, "2026-01-04") is None


def test_headers_and_footers_are_read(spark: SparkSession, hdfs: str, tmp_path: Path) -> None:
    folder = tmp_path / f"raw/dt={RUN_DATE}"
    folder.mkdir(parents=True)
    config = cases.write_config(tmp_path, {"data": f"{hdfs}/tables"})
    names = [column.source_name for column in config.log.columns]
    for index in range(2):
        columns = {name: ["1", "0", None] for name in names}
        pq.write_table(pa.table(columns), folder / f"part-{index}.parquet")
    header, line = ",".join(reversed(names)), ",".join(["1"] * len(names))
    (folder / "a.csv").write_text(f"{header}\n{line}\n{line}\n")
    _put(spark, tmp_path / "raw", f"{hdfs}/tables")
    for kind, rows in (("parquet", 6), ("csv", 2)):
        log = config.log.model_copy(
            update={"path": f"{{data}}/dt={{date}}/*.{kind}", "format": kind, "separator": ","}
        )
        changed = config.model_copy(update={"log": log})
        raw = require_raw(changed, log, RUN_DATE)
        collected = read_log(spark, changed, raw).select("row_id", "_file").collect()
        assert sorted(row["row_id"] for row in collected) == list(range(rows)) or kind == "csv"
        assert {row["_file"] for row in collected} == set(raw.paths)
        assert len(collected) == rows
    assert first_bytes(f"{hdfs}/tables/dt={RUN_DATE}/a.csv", 1 << 16).decode().splitlines()[0] == header


def test_an_unreachable_name_node_is_not_a_missing_day(
    spark: SparkSession, hdfs: str, tmp_path: Path
) -> None:
    """A day without a log is left out of the window, so a failure must not look like a missing day."""
    spark._jsc.hadoopConfiguration().set("ipc.client.connect.max.retries", "0")
    config = cases.write_config(tmp_path, {"data": "hdfs://127.0.0.1:1/raw"})
    with pytest.raises(OSError, match="ConnectException"):
        require_raw(config, config.log, RUN_DATE)


def test_a_lake_on_hdfs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**cases.LOG, "lake": "hdfs://nodes/lake", "data": "hdfs://nodes/raw"}))
    with pytest.raises(ConfigError, match=r"cannot be on HDFS.*s3a://"):
        load_config(str(path))


def test_without_a_session_hdfs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_io, "_hdfs", None)
    with pytest.raises(ConfigError, match="hdfs://nodes/raw cannot be opened here"):
        file_io.exists("hdfs://nodes/raw")
