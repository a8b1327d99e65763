"""Tables of Hive, Delta and Iceberg as the log, with their real metastore and jars, and the job with a profile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from conf.errors import EXIT_CONFIG, EXIT_OK
from jobs import build_features
from setup import jars
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.etl import cases
from tests.etl.spark.catalogue_process import NAMES, ROOT, USER, settings
from tests.etl.spark.test_copy_tables import LOG, rows_of
from tests.etl.text.test_without_a_jvm import DAYS, GROUPS, tables
from tests.processes import environment

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The tables of the same rows as a Parquet log."""
    folder = tmp_path_factory.mktemp("parquet")
    config = cases.write_config(folder, GROUPS, {"log": {**LOG, "format": "parquet"}})
    for seed, day in enumerate(DAYS):
        path = folder / f"raw/dt={day}/clicks.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(rows_of(day, seed), path)
    build_features.run(RunContext("build_features", config, DAYS[-1]))
    built: dict[str, Any] = json.loads(json.dumps(tables(LakePaths(config.lake))))
    return built


def prepared(folder: Path, kind: str) -> Path:
    log = {**LOG, "format": "spark_table", "path": f"{NAMES[kind]}/dt={{date}}"}
    cases.write_config(folder, GROUPS, {"log": log})
    (folder / "rows").mkdir()
    for seed, day in enumerate(DAYS):
        pq.write_table(rows_of(day, seed), folder / f"rows/{day}.parquet")
    return folder


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    variables = {key: value for key, value in environment().items() if key != "PYSPARK_SUBMIT_ARGS"}
    return subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("kind", sorted(NAMES))
def test_tables_of_a_catalogue(expected: dict[str, Any], tmp_path: Path, kind: str) -> None:
    require_jars()
    folder = prepared(tmp_path, kind)
    ended = run([sys.executable, "-m", "tests.etl.spark.catalogue_process", kind, str(folder)], folder)
    assert ended.returncode == 0, ended.stderr[-3000:]
    first, second, third = json.loads(ended.stdout.splitlines()[-1])
    for day in DAYS:
        assert first["tables"][f"features {day}"] == expected[f"features {day}"]
    assert first["has_state"] == (kind != "hive_text")  # the files of Hive's text are not listed by Spark
    assert second == first
    assert [day for day in DAYS if third["files"][day] != first["files"][day]] == [DAYS[0]]
    assert USER in first["users"]
    assert third["users"] == [user for user in first["users"] if user != USER]


@pytest.mark.large
def test_the_job_with_a_profile(expected: dict[str, Any], tmp_path: Path) -> None:
    """The first job has no metastore, and names the remedy. The second has, and no other program prepares it."""
    require_jars()
    folder = prepared(tmp_path, "hive")
    job = [sys.executable, str(ROOT / "jobs/build_features.py"), "--config", str(folder / "config.yaml")]
    job += ["--run-date", DAYS[-1]]
    ended = run(job, folder)
    assert ended.returncode == EXIT_CONFIG, ended.stderr[-3000:]
    assert "log.path: Spark's catalogue has no table or view shop.clicks" in ended.stderr
    assert "spark.sql.catalogImplementation=hive" in ended.stderr
    filled = run([sys.executable, "-c", FILL, str(folder)], folder)
    assert filled.returncode == 0, filled.stderr[-3000:]
    profile = (ROOT / "conf/spark/local.conf").read_text()
    lines = [f"{key} {value}" for key, value in settings("hive", folder).items()]
    (folder / "hive.conf").write_text("\n".join([profile, *lines]))
    ended = run([*job, "--profile", str(folder / "hive.conf")], folder)
    assert ended.returncode == EXIT_OK, ended.stderr[-3000:]
    built = json.loads(json.dumps(tables(LakePaths(str(folder / "lake")))))
    assert all(built[f"features {day}"] == expected[f"features {day}"] for day in DAYS)


FILL = """
import sys
from pathlib import Path
from spark.session import build_session
from tests.etl.spark.catalogue_process import fill, settings
folder = Path(sys.argv[1])
spark = build_session("fill", settings("hive", folder))
fill(spark, "hive", folder)
spark.stop()
"""


def require_jars() -> None:
    """Skips the test if the jars are missing; on CI, where nothing may be missing, fails it."""
    missing = [jar.file_name for jar in jars.table_formats() if not jar.is_there]
    if missing and os.environ.get("CI"):
        pytest.fail(f"{missing} are missing: `make jars` downloads them")
    if missing:
        pytest.skip(f"{missing} are missing: `make jars` downloads them")
