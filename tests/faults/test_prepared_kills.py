"""SIGKILL of build_features while it prepares rows. The next run ends the work, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conf.types import Config
from etl.build import BuildResult
from spark.local_workers import LocalWorkers
from storage.manifest import data_files, is_published, read_manifest
from storage.paths import Lake
from tests.etl import cases
from tests.etl.prepare.small_shop import no_session
from tests.etl.prepare.test_prepared_passes import DAYS, FIRST, _config, _tables
from tests.faults.prepared_process import INSTANTS
from tests.processes import ROOT

pytestmark = [pytest.mark.timeout(300), pytest.mark.processes]

NAME = "history, negatives and tables"
PREPARED = DAYS[:5]


def run(folder: Path, instant: str) -> subprocess.CompletedProcess[str]:
    (folder / "temporary").mkdir(exist_ok=True)
    arguments = [str(folder / "config.yaml"), FIRST, str(folder / "temporary"), instant]
    command = [sys.executable, "-m", "tests.faults.prepared_process", *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, check=False)


def files_below(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]


def tables_of(config: Config) -> dict[str, Any]:
    """The tables of a lake, by a run that has nothing to do."""
    return _tables(config, _finished(config), FIRST)


def _finished(config: Config) -> BuildResult:
    return cases.run_build(LocalWorkers(1, no_session), config, FIRST)


@pytest.fixture(scope="module")
def peaceful(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A lake whose run nobody killed."""
    folder = tmp_path_factory.mktemp("peaceful")
    config = _config(folder, NAME)
    ended = run(folder, "never")
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert files_below(folder / "temporary") == []
    return config


@pytest.mark.parametrize("instant", INSTANTS)
def test_the_next_run_ends_the_work_of_a_killed_one(tmp_path: Path, peaceful: Config, instant: str) -> None:
    config = _config(tmp_path, NAME)
    killed = run(tmp_path, instant)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    lake = Lake(config.lake)
    for dt in PREPARED:  # readers see whole days or none
        for partition in (lake.prepared(config.name).partition(dt), lake.value_counts.partition(dt)):
            if is_published(partition):
                manifest = read_manifest(partition)
                assert all(Path(path).exists() for path in data_files(partition, manifest))
    assert not is_published(lake.datasets.partition(FIRST))
    ended = run(tmp_path, "never")
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert files_below(tmp_path / "temporary") == []
    assert list((tmp_path / "temporary").rglob("workers-*")) == []
    actual, expected = tables_of(config), tables_of(peaceful)
    assert actual.keys() == expected.keys()
    for name, rows in expected.items():
        assert actual[name] == rows, name
    for dt in PREPARED:
        of_lakes = [
            cases.read_rows(Lake(one.lake).prepared(one.name).partition(dt))
            .sort_values("row_id", ignore_index=True)
            .to_json()
            for one in (config, peaceful)
        ]
        assert of_lakes[0] == of_lakes[1]


def test_a_killed_run_leaves_stored_rows_that_the_next_one_deletes(tmp_path: Path) -> None:
    _config(tmp_path, NAME)
    assert run(tmp_path, "after the scan").returncode == -signal.SIGKILL
    left = [path for path in files_below(tmp_path / "temporary") if "nightrank-rows-" in path]
    assert len(left) > len(PREPARED)
    assert run(tmp_path, "never").returncode == 0
    assert files_below(tmp_path / "temporary") == []
