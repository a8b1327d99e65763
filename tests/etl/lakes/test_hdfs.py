"""The raw log on a real HDFS: jobs of spark-submit, and addresses of name nodes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from conf.errors import ConfigError
from etl.raw.files import require_raw
from setup import jars
from storage import file_io
from storage.dataset import read_spec
from storage.paths import LakePaths
from tests.etl import cases, oracle, raw_oracle
from tests.etl.lakes import lakes
from tests.etl.lakes.conftest import ObjectStore
from tests.etl.lakes.stores import HdfsStore

ROOT = Path(__file__).parents[3]
RUN_DATE = "2026-01-03"
DAYS = ["2026-01-01", "2026-01-02", "2026-01-03"]


@pytest.mark.parametrize(
    "engine, lake_store",
    [
        ("arrow", "hdfs"),
        ("sql", "s3"),
        pytest.param("arrow", "s3", marks=pytest.mark.large),
        pytest.param("sql", "hdfs", marks=pytest.mark.large),
    ],
)
def test_a_job_by_spark_submit_from_hdfs_to_a_store_equals_the_oracle(
    hdfs: str, object_store: ObjectStore, tmp_path: Path, engine: str, lake_store: str
) -> None:
    """With `arrow`, Spark's Python workers read HDFS. Credentials come from the environment only."""
    lake_root = hdfs if lake_store == "hdfs" else object_store.root
    roots = {"data": f"{hdfs}/logs/{engine}", "lake": f"{lake_root}/submitted-{engine}"}
    config = cases.write_config(tmp_path, lakes.SMALL, roots, {"workflow": {"engine": engine}})
    good = {}
    for seed, day in enumerate(DAYS):
        paths = cases.write_day(tmp_path / f"raw/dt={day}", cases.make_lines(day, 100, seed))
        good[day], _ = raw_oracle.parse_log(config, paths)
    HdfsStore(hdfs).upload(tmp_path / "raw", f"logs/{engine}")
    done = _submit(tmp_path / "config.yaml", tmp_path, object_store)
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    lake = LakePaths(config.lake)
    fitted = oracle.fit(config, good[DAYS[0]])
    spec = read_spec(lake, summary["workflow_version"])
    for day in DAYS:
        rows = lakes.read_rows(lake.features(spec.workflow_version).partition(day))
        cases.assert_features_equal(rows, oracle.encode(config, fitted, good[day]), spec)
    quarantined = lakes.read_rows(lake.quarantine.partition(DAYS[0]))
    assert set(quarantined["source_file"].str.startswith(f"{hdfs}/logs/{engine}/dt={DAYS[0]}/")) == {True}


def _submit(config: Path, folder: Path, store: ObjectStore) -> subprocess.CompletedProcess[str]:
    command = ["spark-submit", "--properties-file", str(ROOT / "conf/spark/local.conf")]
    command += ["--jars", ",".join(str(jar.path) for jar in jars.s3_client())]
    for key, value in {**store.settings, "spark.local.dir": str(folder)}.items():
        command += ["--conf", f"{key}={value}"]
    command += [str(ROOT / "jobs/build_features.py"), "--config", str(config), "--run-date", RUN_DATE]
    environment = {**os.environ, **store.variables, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)


NAME_SERVICE = """<configuration>
<property><name>dfs.nameservices</name><value>cluster</value></property>
<property><name>dfs.ha.namenodes.cluster</name><value>first,second</value></property>
<property><name>dfs.namenode.rpc-address.cluster.first</name><value>127.0.0.1:1</value></property>
<property><name>dfs.namenode.rpc-address.cluster.second</name><value>{node}</value></property>
</configuration>"""
DEFAULT = """<configuration>
<property><name>fs.defaultFS</name><value>{root}</value></property>
</configuration>"""
ONE_TRY = """<configuration>
<property><name>dfs.client.failover.max.attempts</name><value>1</value></property>
</configuration>"""


def test_a_name_service_is_read_though_its_first_name_node_is_down(
    hdfs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    HdfsStore(hdfs).write("service/dt=1/a.tsv", b"one\n")
    (tmp_path / "hdfs-site.xml").write_text(NAME_SERVICE.format(node=hdfs.removeprefix("hdfs://")))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert file_io.read_text("hdfs://cluster/service/dt=1/a.tsv") == "one\n"
    (tmp_path / "core-site.xml").write_text(DEFAULT.format(root="hdfs://cluster"))
    monkeypatch.setenv("HADOOP_CONF_DIR", f"{tmp_path}/")
    assert file_io.read_text("hdfs:///service/dt=1/a.tsv") == "one\n"
    config = cases.write_config(tmp_path, {"data": "hdfs:///service"})
    assert require_raw(config, config.log, "1").paths == ("hdfs:///service/dt=1/a.tsv",)


def test_an_unreachable_name_node_is_not_a_missing_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day without a log is left out of the window, so a failure must not look like a missing day."""
    (tmp_path / "hdfs-site.xml").write_text(ONE_TRY)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    for node in ("127.0.0.1:1", "127.0.0.1"):  # the second has the port 8020
        config = cases.write_config(tmp_path, {"data": f"hdfs://{node}/raw"})
        with pytest.raises(
            OSError, match=f"hdfs://{node}/raw/dt={RUN_DATE}.* cannot be read: Connection refused"
        ):
            require_raw(config, config.log, RUN_DATE)


def test_a_path_without_a_name_node_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match=r"hdfs:/// cannot be opened: .*fs\.defaultFS") as caught:
        file_io.exists("hdfs:///raw")
    assert "HADOOP_CONF_DIR" in caught.value.remedy
