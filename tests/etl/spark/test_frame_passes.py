"""Days that Spark prepares: once, again if anything changed, and never in part. Plain logs of the engine sql."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from conf.errors import DataError, raised_in
from conf.types import Config
from etl.passes import passes_of, raw_days
from etl.prepare import prepared_passes
from etl.raw.files import require_raw
from etl.spark import frame_passes
from etl.workflow.feature_plan import plan_of
from spark.choose_workers import SparkWorkers
from storage.manifest import Manifest, data_files, read_manifest
from storage.paths import LakePaths, Partition
from storage.remove import written_dates
from tests.etl import cases
from tests.etl.log_rows import REASON, rows_of_log

DAYS = ["2026-01-01", "2026-01-02", "2026-01-03"]
SPLIT = {"by": "day", "train_days": 1, "validation_days": 1, "test_days": 1}
ENGINE = {"workflow": {"engine": "sql"}}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    config = cases.write_config(tmp_path, {"split": SPLIT}, ENGINE)
    for seed, day in enumerate(DAYS):
        cases.write_day(tmp_path / "raw" / f"dt={day}", cases.make_lines(day, 30, seed))
    return config


def prepared(config: Config, day: str = DAYS[0]) -> Partition:
    return LakePaths(config.lake).prepared(config.name).partition(day)


def scan(spark: SparkSession, config: Config, day: str = DAYS[0]) -> None:
    passes = passes_of(SparkWorkers(spark), plan_of(config), LakePaths(config.lake))
    passes.scan_days([require_raw(config, config.log, day)])


def manifest_of(config: Config, day: str = DAYS[0]) -> Manifest:
    return read_manifest(prepared(config, day))


def read(config: Config, day: str = DAYS[0]) -> list[dict[str, Any]]:
    files = data_files(prepared(config, day), manifest_of(config, day))
    rows = [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]
    return sorted(rows, key=lambda row: row["row_id"])


def from_text(config: Config, names: Mapping[str, Any], day: str = DAYS[0]) -> list[dict[str, Any]]:
    """The good rows of the log, with the columns of prepared rows."""
    rows = rows_of_log(config, require_raw(config, config.log, day))
    good = rows.filter(pc.is_null(rows[REASON]))
    return [{name: row[name] for name in names} for row in good.to_pylist()]


def require_rows_of_text(config: Config, day: str = DAYS[0]) -> None:
    rows = read(config, day)
    assert rows
    assert rows == from_text(config, rows[0], day)


def test_a_day_is_prepared_when_it_is_needed_and_never_again(spark: SparkSession, config: Config) -> None:
    scan(spark, config)
    first = manifest_of(config)
    scan(spark, config)
    assert manifest_of(config) == first
    require_rows_of_text(config)
    quarantine = read_manifest(LakePaths(config.lake).quarantine.partition(DAYS[0]))
    assert quarantine.rows > 5, "the day has malformed lines"
    assert first.rows == quarantine.rows_in - sum(quarantine.dropped.values())
    assert written_dates(LakePaths(config.lake).typed) == [], "the table of older releases is not written"


def test_a_changed_log_is_prepared_again(spark: SparkSession, config: Config, tmp_path: Path) -> None:
    scan(spark, config)
    before = manifest_of(config)
    late = tmp_path / f"raw/dt={DAYS[0]}/late.tsv"
    late.write_text("\n".join(cases.make_lines("late", 9, 77)) + "\n", encoding="utf-8")
    scan(spark, config)
    assert manifest_of(config).rows > before.rows
    require_rows_of_text(config)


def test_other_rules_prepare_the_day_again(spark: SparkSession, config: Config, tmp_path: Path) -> None:
    scan(spark, config)
    before = manifest_of(config)
    columns = [*cases.LOG["log"]["columns"][:-1], {"name": "N", "type": "string"}]
    changed = cases.write_config(
        tmp_path, {"split": SPLIT}, ENGINE, {"log": {**cases.LOG["log"], "columns": columns}}
    )
    scan(spark, changed)
    assert manifest_of(changed).digest != before.digest
    require_rows_of_text(changed)
    kept = {"prepare": [{"filter": {"keep": "I1 > 0"}}]}
    filtered = cases.write_config(tmp_path, {"split": SPLIT}, ENGINE, kept)
    scan(spark, filtered)
    require_rows_of_text(filtered)
    quarantine = LakePaths(filtered.lake).quarantine.partition(DAYS[0])
    dropped = [reason for reason in read_manifest(quarantine).dropped if reason.startswith("filter")]
    assert dropped, "prepare drops rows"
    assert not set(cases.read_rows(quarantine)["reason"]) & set(dropped)


def test_columns_may_have_the_names_of_what_is_stored_with_a_row(
    spark: SparkSession, config: Config, tmp_path: Path
) -> None:
    label, _, _, user, item, _, _ = cases.LOG["log"]["columns"]
    columns = [
        label,
        {"name": "I{1..2}", "type": "int"},
        *({"name": name, "type": "int"} for name in ("task", "file", "block")),
        {"name": "path", "type": "float"},
        user,
        item,
        {"name": "C{1..2}", "type": "string"},
        {"name": "line", "type": "string"},
        {"name": "index", "type": "int"},
    ]
    names = [
        ["I{1..2}"],
        ["task"],
        ["file", "block"],
        ["path"],
        ["user", "item"],
        ["C{1..2}", "line", "index"],
    ]
    features = [
        {**feature, "columns": of_feature}
        for feature, of_feature in zip(cases.LOG["features"], names, strict=True)
    ]
    log = {"log": {**cases.LOG["log"], "columns": columns}, "features": features}
    named = cases.write_config(tmp_path, {"split": SPLIT}, ENGINE, log)
    scan(spark, named)
    require_rows_of_text(named)


@pytest.mark.parametrize("damage", ["format", "bytes"])
def test_obsolete_and_damaged_rows_are_prepared_again(
    spark: SparkSession, config: Config, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    scan(spark, config)
    before = manifest_of(config)
    if damage == "format":
        monkeypatch.setattr(prepared_passes, "_PREPARED_FORMAT", 0)
    else:
        path = data_files(prepared(config), before)[0]
        os.truncate(path, os.path.getsize(path) - 1)
    workers = SparkWorkers(spark)
    passes = passes_of(workers, plan_of(config), LakePaths(config.lake))
    passes.scan_days([require_raw(config, config.log, DAYS[0])])
    passes.training_rows([require_raw(config, config.log, DAYS[0])])
    assert manifest_of(config).files != before.files
    require_rows_of_text(config)


def test_an_attempt_that_dies_before_the_manifest_leaves_the_old_rows(
    spark: SparkSession, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan(spark, config)
    published = manifest_of(config)
    late = tmp_path / f"raw/dt={DAYS[0]}/late.tsv"
    late.write_text("no row\n", encoding="utf-8")

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(frame_passes, "publish", dies)
        with pytest.raises(KeyboardInterrupt):
            scan(spark, config)
    assert manifest_of(config) == published
    stored = [path for path in Path(config.lake).rglob("*-rows/*") if path.is_file()]
    assert stored == [], "stored rows are deleted"
    late.unlink()
    scan(spark, config)  # the quarantine of the late file was published
    require_rows_of_text(config)
    assert manifest_of(config).rows == published.rows


def test_a_damaged_file_is_named_and_nothing_is_published(
    spark: SparkSession, config: Config, tmp_path: Path
) -> None:
    (tmp_path / f"raw/dt={DAYS[0]}/bad.tsv.gz").write_bytes(b"\x1f\x8b\x08\x00 no gzip")
    with pytest.raises(PythonException) as failed:
        scan(spark, config)
    error = raised_in(str(failed.value))
    assert isinstance(error, DataError)
    assert "bad.tsv.gz cannot be decompressed" in error.problem
    assert not (Path(config.lake) / "prepared").exists()


def test_the_engine_sql_publishes_what_tasks_publish(
    spark: SparkSession, config: Config, tmp_path: Path
) -> None:
    """Quarantine, features and vocabularies of a log that needs no preparation."""
    by_frames = cases.run_build(spark, config, DAYS[-1])
    arrow = cases.write_config(tmp_path, {"split": SPLIT, "workflow": {"engine": "arrow"}})
    arrow = arrow.model_copy(update={"lake": str(tmp_path / "arrow")})
    by_tasks = cases.run_build(spark, arrow, DAYS[-1])
    assert not (tmp_path / "arrow/prepared").exists()
    assert set(written_dates(LakePaths(config.lake).prepared(config.name))) == set(DAYS)
    assert by_frames.workflow.version == by_tasks.workflow.version
    for raw in raw_days(plan_of(config), DAYS[-1])["train"]:
        partitions = [
            LakePaths(one.lake).features(by_tasks.workflow.version).partition(raw.dt)
            for one in (config, arrow)
        ]
        mine, theirs = (cases.read_rows(partition) for partition in partitions)
        cases.assert_features_equal(mine, theirs, by_tasks.workflow.spec)
