"""The two passes give equal tables for any buckets, without scratch files, and without the library."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from conf.types import Config
from etl import build, passes
from etl.build import BuildResult
from etl.latest import latest_rows
from etl.ops.tables import RARE, VOCABULARY, workflow_table
from etl.spark.frame_passes import FramePasses
from etl.statistics import value_counts
from etl.text import two_passes
from etl.text.scan_pass import CountedBlock
from spark.choose_workers import SparkWorkers
from spark.workers import LocalWorkers, Workers
from storage import file_io
from storage.manifest import MANIFEST_NAME, data_files, read_manifest
from storage.paths import LakePaths, Partition
from tests.etl import cases
from tests.etl.tasks_here import TasksHere

DAYS = ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04"]
GROUPS = {
    "features": [
        {"columns": ["I1", "I2"], "kind": "dense", "ops": ["fill_median", "winsorize", "normalize"]},
        {"columns": ["X"], "kind": "dense", "ops": ["fill_median", "winsorize", "normalize"]},
        {
            "columns": ["X"],
            "kind": "categorical",
            "ops": [{"bucketize": {"boundaries": [0, 2]}}, {"rename": {"suffix": "_range"}}, "categorify"],
        },
        {"columns": ["C1", "C2"], "kind": "categorical", "ops": [{"categorify": {"min_count": 3}}]},
        {"columns": ["user"], "kind": "categorical", "ops": [{"categorify": {"max_size": 5}}]},
        {
            "columns": ["item"],
            "kind": "categorical",
            "ops": [{"fill": {"value": "none"}}, {"categorify": {"min_count": 2, "oov_buckets": 2}}],
        },
    ],
    "scopes": {"user": ["user"], "item": ["item"]},
}
Tables = dict[str, Any]


def _build(spark: SparkSession | Workers, folder: Path) -> tuple[Config, BuildResult, BuildResult]:
    """A fit on the first day, and its extension by the second."""
    config = cases.write_config(folder, GROUPS)
    for seed, day in enumerate(DAYS):
        cases.write_day(folder / f"raw/dt={day}", cases.make_lines(day, 150, seed))
    workers = spark if isinstance(spark, Workers) else SparkWorkers(spark)
    first = cases.run_build(workers, config, DAYS[2])
    again = config.model_copy(update={"workflow": config.workflow.model_copy(update={"mode": "retrain"})})
    return config, first, cases.run_build(workers, again, DAYS[3], first.workflow.version)


def _rows(partition: Partition, *order: str) -> list[dict[str, Any]]:
    tables = [
        pq.read_table(path, partitioning=None) for path in data_files(partition, read_manifest(partition))
    ]
    return list(pa.concat_tables(tables).sort_by([(name, "ascending") for name in order]).to_pylist())


def _in_order(partition: Partition) -> list[dict[str, Any]]:
    """The rows in the order of the files, without the folder of the raw log."""
    paths = data_files(partition, read_manifest(partition))
    rows = pa.concat_tables([pq.read_table(path, partitioning=None) for path in paths]).to_pylist()
    return [{**row, "source_file": str(row.get("source_file")).rsplit("/", 1)[-1]} for row in rows]


def _tables(config: Config, first: BuildResult, second: BuildResult) -> Tables:
    lake = LakePaths(config.lake)
    tables: Tables = {}
    for name, built in (("first", first), ("second", second)):
        version = built.workflow.version
        for table in (VOCABULARY, RARE):
            tables[f"{name} {table}"] = _rows(workflow_table(lake, version, table), "column", "value")
        stored = file_io.read_json(f"{lake.workflow(version)}/workflow.json")
        tables[f"{name} chains"] = [chain["steps"] for chain in stored["chains"]]
        for dt in built.features:
            partition = lake.features(version).partition(dt)
            tables[f"{name} features {dt}"] = _rows(partition, "row_id")
    [path, *_] = data_files(partition, read_manifest(partition))
    for dt in DAYS:
        tables[f"quarantine {dt}"] = _in_order(lake.quarantine.partition(dt))
        tables[f"value counts {dt}"] = _rows(lake.value_counts.partition(dt), "column", "value", "count")
    for name, side in (("users", lake.users(version)), ("items", lake.items(version))):
        tables[name] = _in_order(side.partition(DAYS[3]))
    tables["nullable"] = {field.name: field.nullable for field in pq.read_schema(path)}
    [quality] = file_io.list_files(f"{config.lake}/quality/hard/dt={DAYS[3]}")
    tables["quality"] = {
        name: value for name, value in file_io.read_json(quality.path)["facts"].items() if name != "made_at"
    }
    return tables


def _no_session() -> SparkSession:
    raise AssertionError("a fit and its extension need no Spark session")


@pytest.fixture(scope="module")
def expected(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return _tables(*_build(spark, tmp_path_factory.mktemp("expected")))


@pytest.mark.parametrize("values_of_task", [5, 8_000_000])
@pytest.mark.parametrize("rows_in_driver", [0, 10_000_000])
def test_processes_of_this_machine_publish_the_tables_that_sparks_workers_publish(
    values_of_task: int,
    rows_in_driver: int,
    tmp_path: Path,
    expected: Tables,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(two_passes, "BUCKET_BYTES", 500 * values_of_task)
    monkeypatch.setattr(value_counts, "MERGE_VALUES", values_of_task)
    monkeypatch.setattr(latest_rows, "ROWS_IN_DRIVER", rows_in_driver)
    tables = _tables(*_build(LocalWorkers(2, _no_session), tmp_path))
    assert tables.keys() == expected.keys()
    for name, table in tables.items():
        assert table == expected[name], name


class _RemoteScratch(dict[Any, Any]):
    """Saved blocks of parsed file splits that are all on another machine's disk."""

    def get(self, *of_split: Any) -> list[CountedBlock]:
        return [replace(block, saved="elsewhere") for block in super().get(*of_split)]


def test_neither_hash_buckets_nor_lost_scratch_change_a_table(
    tmp_path: Path, expected: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two_passes, "BUCKET_BYTES", 2_000)
    monkeypatch.setattr(value_counts, "MERGE_VALUES", 5)
    original = two_passes.TextPasses.__init__

    def init_without_scratch(self: two_passes.TextPasses, *arguments: Any) -> None:
        original(self, *arguments)
        self._scratch = _RemoteScratch()

    monkeypatch.setattr(two_passes.TextPasses, "__init__", init_without_scratch)
    tables = _tables(*_build(TasksHere(2, _no_session), tmp_path))
    rare = [
        path.name
        for path in (tmp_path / "lake/_data/workflow").rglob("part-*.parquet")
        if path.name.count("-") == 2
    ]
    assert len({name.split("-")[2] for name in rare}) >= 8, "columns were divided into buckets"
    assert tables.keys() == expected.keys()
    for name, table in tables.items():
        assert table == expected[name], name


def test_spark_prepares_the_same_days(
    spark: SparkSession, tmp_path: Path, expected: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (build, passes):
        monkeypatch.setattr(module, "passes_of", FramePasses)
    config, first, second = _build(spark, tmp_path)
    assert (tmp_path / "lake/prepared").exists()
    lake = LakePaths(config.lake)
    for name, built in (("first", first), ("second", second)):
        vocabulary = _rows(workflow_table(lake, built.workflow.version, VOCABULARY), "column", "value")
        assert vocabulary == expected[f"{name} {VOCABULARY}"]
        for dt in built.features:
            partition = lake.features(built.workflow.version).partition(dt)
            assert _rows(partition, "row_id") == expected[f"{name} features {dt}"]


def test_what_a_model_reads_is_declared_as_never_null(expected: Tables) -> None:
    nullable = expected["nullable"]
    features = ["label", "I1", "I2", "C1", "C2", "user", "item"]
    assert {name: nullable[name] for name in features} == dict.fromkeys(features, False)
    assert nullable["row_id"], "a key may be null"


def test_a_feature_that_is_null_names_file_and_column(tmp_path: Path) -> None:
    groups = {"features": [{"columns": ["I1"], "kind": "dense", "ops": ["normalize"]}], "scopes": {}}
    config = cases.write_config(tmp_path, groups)
    for seed, day in enumerate(DAYS[:3]):
        cases.write_day(tmp_path / f"raw/dt={day}", cases.make_lines(day, 150, seed))
    with pytest.raises(
        Exception, match=r"raw/dt=.*: I1 is null in \d+ of \d+ rows[\s\S]*add the operator `fill` for I1"
    ):
        cases.run_build(TasksHere(2, _no_session), config, DAYS[2])
    assert not (tmp_path / "lake/datasets").exists()


def test_published_counts_are_never_written_again(
    spark: SparkSession, tmp_path: Path, expected: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `persist`, every use of the frame scans again, as when executors are lost."""
    monkeypatch.setattr(DataFrame, "persist", lambda self, *_: self)
    config, first, second = _build(spark, tmp_path)
    assert _tables(config, first, second) == expected
    manifests = sorted((tmp_path / "lake/value_counts").rglob(MANIFEST_NAME))
    assert len(manifests) == len(DAYS)
    for manifest in manifests:
        files = [*manifest.parent.rglob("*.parquet")]
        assert files
        assert all(file.stat().st_mtime_ns <= manifest.stat().st_mtime_ns for file in files)
