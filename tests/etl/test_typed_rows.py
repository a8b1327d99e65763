"""The table of parsed rows: it is used as long as log and rules are the same, and deleted when it is not
needed. tests/etl/test_hostile_bytes.py compares its rows with those of the text.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conf.errors import DataError
from conf.types import Config
from etl.raw.files import require_raw
from etl.spark import typed_rows
from etl.spark.read_log import read_log
from etl.spark.typed_rows import day_rows, delete_unneeded_days
from storage import file_io
from storage.manifest import Manifest, data_files, read_manifest
from storage.paths import Lake, Partition
from storage.remove import remove, written_dates
from tests.etl import cases
from tests.plans.recorder import recording

DAYS = ["2026-01-01", "2026-01-02", "2026-01-03"]
SPLIT = {"by": "day", "train_days": 1, "validation_days": 1, "test_days": 1}
ENGINE = {"workflow": {"engine": "sql"}}
Row = tuple[object, ...]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    config = cases.write_config(tmp_path, {"split": SPLIT}, ENGINE)
    for seed, day in enumerate(DAYS):
        cases.write_day(tmp_path / "raw" / f"dt={day}", cases.make_lines(day, 30, seed))
    return config


def read(spark: SparkSession, config: Config, day: str = DAYS[0]) -> list[Row]:
    """The rows of a day as jobs read them; the text of good rows is not among the columns."""
    rows = day_rows(spark, config, Lake(config.lake), require_raw(config, config.log, day))
    return sorted(map(tuple, rows.drop("_line").collect()), key=lambda row: row[0])


def from_text(spark: SparkSession, config: Config, day: str = DAYS[0]) -> list[Row]:
    rows = read_log(spark, config, require_raw(config, config.log, day))
    typed = day_rows(spark, config, Lake(config.lake), require_raw(config, config.log, day))
    kept = [name for name in typed.columns if name != "_line"]
    return sorted(map(tuple, rows.select(*kept).collect()), key=lambda row: row[0])


def scans(act: Callable[[], object]) -> list[str]:
    """The days whose text is scanned meanwhile, once for every scan."""
    scanned: list[str] = []
    with recording(None, scanned):
        act()
    return scanned


def manifest_of(config: Config, day: str = DAYS[0]) -> Manifest:
    return read_manifest(Lake(config.lake).typed.partition(day))


def test_a_day_is_parsed_when_it_is_needed_and_never_again(spark: SparkSession, config: Config) -> None:
    assert scans(lambda: read(spark, config)) == [DAYS[0]]
    first = manifest_of(config)
    assert scans(lambda: read(spark, config)) == []
    assert manifest_of(config) == first
    assert read(spark, config) == from_text(spark, config)
    assert sum(first.facts["reasons"].values()) > 5, "the day has malformed lines"


def test_a_changed_log_is_parsed_again(spark: SparkSession, config: Config, tmp_path: Path) -> None:
    before = read(spark, config)
    late = tmp_path / f"raw/dt={DAYS[0]}/late.tsv"
    late.write_text("\n".join(cases.make_lines("late", 9, 77)) + "\n", encoding="utf-8")
    assert scans(lambda: read(spark, config)) == [DAYS[0]]
    assert len(read(spark, config)) > len(before)
    assert read(spark, config) == from_text(spark, config)


def test_other_rules_parse_the_day_again(spark: SparkSession, config: Config, tmp_path: Path) -> None:
    read(spark, config)
    columns = [*cases.LOG["log"]["columns"][:-1], {"name": "N", "type": "string"}]
    changed = cases.write_config(
        tmp_path, {"split": SPLIT}, ENGINE, {"log": {**cases.LOG["log"], "columns": columns}}
    )
    assert scans(lambda: read(spark, changed)) == [DAYS[0]]
    assert read(spark, changed) == from_text(spark, changed)
    kept = {"prepare": [{"filter": {"keep": "I1 > 0"}}]}
    filtered = cases.write_config(tmp_path, {"split": SPLIT}, ENGINE, kept)
    assert scans(lambda: read(spark, filtered)) == [DAYS[0]]
    assert read(spark, filtered) == from_text(spark, filtered)
    dropped = [reason for reason in manifest_of(filtered).facts["reasons"] if reason.startswith("filter")]
    assert dropped, "prepare drops rows"
    lines = day_rows(spark, filtered, Lake(filtered.lake), require_raw(filtered, filtered.log, DAYS[0]))
    assert not [row for row in lines.collect() if row["_reason"] in dropped and row["_line"] is not None]


def test_columns_may_have_the_names_of_what_is_read_with_a_line(
    spark: SparkSession, config: Config, tmp_path: Path
) -> None:
    label, _, _, user, item, _, _ = cases.LOG["log"]["columns"]
    columns = [
        label,
        {"name": "I{1..2}", "type": "int"},
        *({"name": name, "type": "int"} for name in ("is_utf8", "file", "block")),
        {"name": "path", "type": "float"},
        user,
        item,
        {"name": "C{1..2}", "type": "string"},
        {"name": "line", "type": "string"},
        {"name": "index", "type": "int"},
    ]
    names = [
        ["I{1..2}"],
        ["is_utf8"],
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
    assert read(spark, named) == from_text(spark, named)


def test_a_table_of_another_format_is_not_read(
    spark: SparkSession, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(spark, config)
    monkeypatch.setattr(typed_rows, "_FORMAT", "0")
    assert scans(lambda: read(spark, config)) == [DAYS[0]]


def test_lost_bytes_are_noticed(spark: SparkSession, config: Config) -> None:
    read(spark, config)
    path = data_files(Lake(config.lake).typed.partition(DAYS[0]), manifest_of(config))[0]
    os.truncate(path, os.path.getsize(path) - 1)
    assert scans(lambda: read(spark, config)) == [DAYS[0]]
    assert read(spark, config) == from_text(spark, config)


def test_an_attempt_that_dies_before_the_manifest_leaves_the_old_rows(
    spark: SparkSession, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read(spark, config)
    published = manifest_of(config)
    raw = tmp_path / f"raw/dt={DAYS[0]}"
    late = raw / "late.tsv"
    late.write_text("no row\n", encoding="utf-8")

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(typed_rows, "publish_files", dies)
        with pytest.raises(KeyboardInterrupt):
            read(spark, config)
    assert manifest_of(config) == published
    late.unlink()
    assert scans(lambda: read(spark, config)) == []
    assert read(spark, config) == before


def test_a_damaged_file_is_named_and_nothing_is_published(
    spark: SparkSession, config: Config, tmp_path: Path
) -> None:
    raw = tmp_path / f"raw/dt={DAYS[0]}"
    (raw / "bad.tsv.gz").write_bytes(b"\x1f\x8b\x08\x00 no gzip")
    with pytest.raises(DataError, match=r"bad\.tsv\.gz cannot be decompressed"):
        read(spark, config)
    assert not (Path(config.lake) / "typed").exists()


def test_the_engine_arrow_has_no_such_table(spark: SparkSession, config: Config, tmp_path: Path) -> None:
    arrow = cases.write_config(tmp_path, {"split": SPLIT, "workflow": {"engine": "arrow"}})
    cases.run_build(spark, arrow, DAYS[-1])
    assert written_dates(Lake(arrow.lake).typed) == []


def test_a_run_deletes_days_before_its_window_after_the_grace_period(
    spark: SparkSession, config: Config, tmp_path: Path
) -> None:
    for day in DAYS:
        read(spark, config, day)
    typed, fourth = Lake(config.lake).typed, "2026-01-04"
    assert written_dates(typed) == DAYS
    cases.write_day(tmp_path / "raw" / f"dt={fourth}", cases.make_lines(fourth, 30, 9))
    cases.run_build(spark, config, fourth)
    assert written_dates(typed) == [*DAYS, fourth], "a run that began earlier may still read the first day"
    age(config, hours=25)
    cases.run_build(spark, config, fourth)
    assert written_dates(typed) == [*DAYS[1:], fourth]
    assert not (Path(config.lake) / f"typed/dt={DAYS[0]}").exists()
    assert scans(lambda: read(spark, config)) == [DAYS[0]], "a run that needs the day parses it again"


def age(config: Config, hours: float) -> None:
    """Makes all files of the table and its manifests older."""
    past = time.time() - hours * 3600
    for dt in written_dates(Lake(config.lake).typed):
        partition = Lake(config.lake).typed.partition(dt)
        path = partition.file("_MANIFEST.json")
        values = file_io.read_json(path)
        values["created_at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(past))
        file_io.replace_json(path, values)
        for file in Path(partition.file(partition.data)).rglob("*"):
            os.utime(file, (past, past))


def test_typed_rows_are_deleted_with_the_log_that_they_were_made_from(
    spark: SparkSession, config: Config, tmp_path: Path
) -> None:
    for day in DAYS:
        read(spark, config, day)
    shutil.rmtree(tmp_path / f"raw/dt={DAYS[1]}")
    delete_unneeded_days(config, Lake(config.lake), DAYS[0])
    assert written_dates(Lake(config.lake).typed) == [DAYS[0], DAYS[2]]


def test_a_removal_that_was_killed_is_continued(spark: SparkSession, config: Config, tmp_path: Path) -> None:
    read(spark, config)
    lake = Lake(config.lake)
    os.unlink(lake.typed.partition(DAYS[0]).file("_MANIFEST.json"))
    shutil.rmtree(tmp_path / f"raw/dt={DAYS[0]}")
    delete_unneeded_days(config, lake, DAYS[0])
    assert written_dates(lake.typed) == []
    assert not (Path(config.lake) / f"typed/dt={DAYS[0]}").exists()


def test_a_day_that_cannot_be_deleted_does_not_stop_the_run(
    spark: SparkSession,
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for day in DAYS[:2]:
        read(spark, config, day)
        shutil.rmtree(tmp_path / f"raw/dt={day}")

    def fails(partition: Partition, grace_hours: float) -> None:
        if partition.dt == DAYS[0]:
            raise PermissionError("read-only")
        remove(partition, grace_hours)

    monkeypatch.setattr(typed_rows, "remove", fails)
    delete_unneeded_days(config, Lake(config.lake), DAYS[0])
    assert written_dates(Lake(config.lake).typed) == [DAYS[0]]
    assert "2026-01-01 cannot be deleted" in caplog.text


def test_histories_keep_the_days_whose_clicks_they_read(spark: SparkSession, tmp_path: Path) -> None:
    history = {"history": {"column": "clicked", "length": 3, "days": 1}}
    config = cases.write_config(tmp_path, {"split": SPLIT}, ENGINE, history)
    for seed, day in enumerate(DAYS):
        cases.write_day(tmp_path / "raw" / f"dt={day}", cases.make_lines(day, 30, seed))
        read(spark, config, day)
    age(config, hours=25)
    delete_unneeded_days(config, Lake(config.lake), DAYS[2])
    assert written_dates(Lake(config.lake).typed) == DAYS[1:]
