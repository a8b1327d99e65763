"""All stages of two days on lakes of every store publish the rows that they publish on a local disk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import nightrank
from storage.fsck import check_lake
from storage.manifest import data_files, load_manifest
from storage.paths import LakePaths, Partition
from storage.read_parquet import concat_parts, read_file
from tests.etl.lakes import lakes, servers
from tests.etl.lakes.chain import RUN_DATES
from tests.etl.lakes.stores import RawStore
from tests.processes import ROOT, environment

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pa.Table]:
    """The rows of a chain on a local disk."""
    root = f"{tmp_path_factory.mktemp('local')}/lake"
    _run(root, "auto")
    return _rows(root)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bucket on an S3 server, without Spark."""
    with servers.bucket(tmp_path_factory.mktemp("s3"), "chains"):
        yield "s3a://chains"


@pytest.mark.large
def test_without_spark_on_hdfs(hdfs: str, expected: dict[str, pa.Table]) -> None:
    _check(f"{hdfs}/chain/lake", "auto", expected)


@pytest.mark.large
def test_with_spark_on_hdfs(hdfs: str, tmp_path: Path) -> None:
    """Spark reads and writes the lake with Hadoop's own client, as it does on a disk."""
    local = f"{tmp_path}/lake"
    _run(local, "sql")
    _check(f"{hdfs}/spark/lake", "sql", _rows(local))


@pytest.mark.large
def test_without_spark_on_googles_store(google_lake: str, expected: dict[str, pa.Table]) -> None:
    _check(f"{google_lake}/chain/lake", "auto", expected)


@pytest.mark.large
def test_without_spark_on_azure(azure: RawStore, expected: dict[str, pa.Table]) -> None:
    _check(f"{azure.root}/chain/lake", "auto", expected)


@pytest.mark.large
def test_without_spark_on_s3(bucket: str, expected: dict[str, pa.Table]) -> None:
    _check(f"{bucket}/chain/lake", "auto", expected)


def _check(root: str, engine: str, expected: dict[str, pa.Table]) -> None:
    _run(root, engine)
    rows = _rows(root)
    tables = {
        name for name in expected if engine == "auto" or not name.startswith(("copies", "value_counts"))
    }
    assert tables - rows.keys() == set()
    assert [name for name in sorted(tables) if not rows[name].equals(expected[name])] == []
    findings = check_lake(LakePaths(root))
    assert findings.files > 20
    assert findings.damages == ()
    lists = nightrank.open(root).recommendations(RUN_DATES[-1])
    assert lists.rows == expected[f"recommendations/dt={RUN_DATES[-1]}"].num_rows


def _run(root: str, engine: str) -> None:
    command = [sys.executable, "-m", "tests.etl.lakes.chain", root, engine]
    ended = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]


def _rows(root: str) -> dict[str, pa.Table]:
    """Partition of a table with dates → its rows. Columns with paths are left out."""
    rows = {}
    for name in lakes.manifests(root):
        table, separator, day = name.rpartition("/dt=")
        if not separator or table == "raw":
            continue
        partition = Partition(table, day, f"{root}/{name}", name.count("/") + 1)
        paths = data_files(partition, load_manifest(partition))
        if paths and all(path.endswith(".parquet") for path in paths):
            read = concat_parts([read_file(path) for path in paths])
            rows[name] = read.drop_columns([c for c in ("source_file",) if c in read.column_names])
    return rows
