"""Prepared rows are deleted when no run needs them, and so are typed rows of older lakes."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest

from conf.types import Config
from etl.prepare import prepared_passes
from etl.prepare.prepared_passes import delete_unneeded_days
from etl.workflow.feature_plan import plan_of
from storage import file_io
from storage.manifest import is_published
from storage.paths import LakePaths, Partition, Table
from storage.publish import publish_files, write_table
from storage.remove import remove, written_dates
from tests.etl import cases

DAYS = ["2026-01-01", "2026-01-02", "2026-01-03"]
SPLIT = {"by": "day", "train_days": 1, "validation_days": 1, "test_days": 1}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A log of three days, whose rows are in both tables."""
    config = cases.write_config(tmp_path, {"split": SPLIT})
    for seed, day in enumerate(DAYS):
        cases.write_day(tmp_path / "raw" / f"dt={day}", cases.make_lines(day, 3, seed))
        for table in tables(config):
            partition = table.partition(day)
            files = write_table(pa.table({"x": [seed]}), partition, 10)
            publish_files(partition, dict.fromkeys(files), inputs={"day": day})
    return config


def tables(config: Config) -> list[Table]:
    lake = LakePaths(config.lake)
    return [lake.typed, lake.prepared(config.name)]


def age(config: Config, hours: float) -> None:
    """Makes all files of the tables and their manifests older."""
    past = time.time() - hours * 3600
    for table in tables(config):
        for dt in written_dates(table):
            partition = table.partition(dt)
            if is_published(partition):
                path = partition.file("_MANIFEST.json")
                values = file_io.read_json(path)
                values["created_at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(past))
                file_io.replace_json(path, values)
            for file in Path(partition.file(partition.data)).rglob("*"):
                os.utime(file, (past, past))


def published_dates(table: Table) -> list[str]:
    return [dt for dt in written_dates(table) if is_published(table.partition(dt))]


def test_days_before_the_window_are_deleted_after_the_grace_period(config: Config) -> None:
    lake = LakePaths(config.lake)
    delete_unneeded_days(plan_of(config), lake, DAYS[1])
    for table in tables(config):
        assert written_dates(table) == DAYS, "a run that began earlier may still read the first day"
    age(config, hours=25)
    for _ in range(2):
        delete_unneeded_days(plan_of(config), lake, DAYS[1])
        for table in tables(config):
            assert published_dates(table) == DAYS[1:]
            assert written_dates(table) == DAYS, "a program may have read the manifest just before"
    age(config, hours=25)
    delete_unneeded_days(plan_of(config), lake, DAYS[1])
    for table in tables(config):
        assert written_dates(table) == DAYS[1:]
        assert not Path(table.partition(DAYS[0]).path).exists()


def test_rows_are_deleted_with_the_log_that_they_were_made_from(config: Config, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / f"raw/dt={DAYS[1]}")
    delete_unneeded_days(plan_of(config), LakePaths(config.lake), DAYS[0])
    assert [written_dates(table) for table in tables(config)] == [[DAYS[0], DAYS[2]]] * 2


def test_a_removal_that_was_killed_is_continued(config: Config, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / f"raw/dt={DAYS[0]}")
    for table in tables(config):
        os.unlink(table.partition(DAYS[0]).file("_MANIFEST.json"))
    delete_unneeded_days(plan_of(config), LakePaths(config.lake), DAYS[0])
    for table in tables(config):
        assert written_dates(table) == DAYS[1:]
        assert not Path(table.partition(DAYS[0]).path).exists()


def test_a_day_that_cannot_be_deleted_does_not_stop_the_run(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for day in DAYS[:2]:
        shutil.rmtree(tmp_path / f"raw/dt={day}")

    def fails(partition: Partition, grace_hours: float) -> None:
        if partition.dt == DAYS[0]:
            raise PermissionError("read-only")
        remove(partition, grace_hours)

    monkeypatch.setattr(prepared_passes, "remove", fails)
    delete_unneeded_days(plan_of(config), LakePaths(config.lake), DAYS[0])
    assert [written_dates(table) for table in tables(config)] == [[DAYS[0], DAYS[2]]] * 2
    assert "2026-01-01 cannot be deleted" in caplog.text


def test_histories_keep_the_days_whose_clicks_they_read(config: Config, tmp_path: Path) -> None:
    history = {"history": {"column": "clicked", "length": 3, "days": 1}}
    with_history = cases.write_config(tmp_path, {"split": SPLIT}, history)
    age(config, hours=25)
    delete_unneeded_days(plan_of(with_history), LakePaths(config.lake), DAYS[2])
    assert [published_dates(table) for table in tables(config)] == [DAYS[1:]] * 2
