"""SIGKILL of build_features while it prepares rows. The next run ends the work, and leaves nothing behind."""

from __future__ import annotations

import csv
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conf.types import Config
from etl.build import BuildResult
from spark.workers import LocalWorkers
from storage.manifest import data_files, is_published, read_manifest
from storage.paths import LakePaths
from tests.etl import cases
from tests.etl.prepare.small_shop import no_session
from tests.etl.prepare.test_prepared_passes import DAYS, FIRST, SHOP, _config, _tables, _write
from tests.faults import prepared_process
from tests.faults.prepared_process import INSTANTS
from tests.processes import fork_server, server_address

pytestmark = [pytest.mark.timeout(300), pytest.mark.processes]

NAME = "history, negatives and tables"
PREPARED = DAYS[:5]


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with fork_server("tests.faults.prepared_process", "spark.forked_modules") as context:
        yield context


def run(server: Any, folder: Path, instant: str, *parent: str) -> int | None:
    """Runs a build in a process that dies at an instant. Returns its exit code."""
    (folder / "temporary").mkdir(exist_ok=True)
    paths = str(folder / "config.yaml"), FIRST, str(folder / "temporary")
    arguments = (server_address(), *paths, instant, *parent)
    process = server.Process(target=prepared_process.run, args=arguments)
    process.start()
    process.join(240)
    code: int | None = process.exitcode
    return code


def files_below(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]


def tables_of(config: Config) -> dict[str, Any]:
    """The tables of a lake, by a run that has nothing to do."""
    return _tables(config, _finished(config), FIRST)


def _finished(config: Config) -> BuildResult:
    return cases.run_build(LocalWorkers(1, no_session), config, FIRST)


@pytest.fixture(scope="module")
def peaceful(server: Any, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A lake whose run nobody killed."""
    folder = tmp_path_factory.mktemp("peaceful")
    config = _config(folder, NAME)
    assert run(server, folder, "never") == 0
    assert files_below(folder / "temporary") == []
    return config


@pytest.mark.parametrize("instant", INSTANTS)
def test_the_next_run_ends_the_work_of_a_killed_one(
    server: Any, tmp_path: Path, peaceful: Config, instant: str
) -> None:
    config = _config(tmp_path, NAME)
    assert run(server, tmp_path, instant) == -signal.SIGKILL
    if instant == "after the scan":  # the next run must delete these stored rows
        left = [path for path in files_below(tmp_path / "temporary") if "nightrank-rows-" in path]
        assert len(left) > len(PREPARED)
    lake = LakePaths(config.lake)
    for dt in PREPARED:  # readers see whole days or none
        for partition in (lake.prepared(config.name).partition(dt), lake.value_counts.partition(dt)):
            if is_published(partition):
                manifest = read_manifest(partition)
                assert all(Path(path).exists() for path in data_files(partition, manifest))
    assert not is_published(lake.datasets.partition(FIRST))
    assert run(server, tmp_path, "never") == 0
    assert files_below(tmp_path / "temporary") == []
    assert list((tmp_path / "temporary").rglob("workers-*")) == []
    actual, expected = tables_of(config), tables_of(peaceful)
    assert actual.keys() == expected.keys()
    for name, rows in expected.items():
        assert actual[name] == rows, name
    for dt in PREPARED:
        of_lakes = [
            cases.read_rows(LakePaths(one.lake).prepared(one.name).partition(dt))
            .sort_values("row_id", ignore_index=True)
            .to_json()
            for one in (config, peaceful)
        ]
        assert of_lakes[0] == of_lakes[1]


LATE = DAYS[3]
POSITIONS: dict[str, Any] = {
    "features": [
        *SHOP["features"],
        {"columns": ["place_shown"], "kind": "dense", "ops": [{"fill": {"value": 0}}]},
    ],
    "scopes": {**SHOP["scopes"], "context": ["place_shown"]},
    "serving": {
        "impressions": {
            "path": "{data}/shown/{date}.csv",
            "format": "csv",
            "separator": ";",
            "user": "who",
            "item": "what",
            "position": "place",
            "time": "at",
            "row_column": "place_shown",
        }
    },
}


def _impressions_of(folder: Path, day: str) -> dict[int, int]:
    """Writes a log of impressions in which every second row was shown. Returns the positions by row_id."""
    with (folder / f"{day}.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file, delimiter=";"))
    shown = {number: 1 + number % 7 for number in range(1, len(lines) + 1, 2)}
    text = [
        f"{lines[n - 1]['who']};{lines[n - 1]['what']};{place};{lines[n - 1]['at']}"
        for n, place in shown.items()
    ]
    (folder / "shown").mkdir(exist_ok=True)
    (folder / f"shown/{day}.csv").write_text("\n".join(["who;what;place;at", *text]) + "\n", encoding="utf-8")
    return shown


def _late_shop(folder: Path) -> tuple[Config, str, dict[int, int]]:
    """Returns a lake that was built without the impressions of LATE, its workflow, and these impressions."""
    folder.mkdir(exist_ok=True)
    config = cases.write_config(folder, SHOP, POSITIONS)
    _write(folder / "raw")
    for day in DAYS:
        if day != LATE:
            _impressions_of(folder / "raw", day)
    version = cases.run_build(LocalWorkers(1, no_session), config, FIRST).workflow.version
    rows = cases.read_rows(LakePaths(config.lake).prepared(config.name).partition(LATE))
    assert rows["place_shown"].isna().all()
    return config, version, _impressions_of(folder / "raw", LATE)


@pytest.mark.parametrize(
    "instant", ["after the scan", "before the first day", "before the counts", "before the features"]
)
def test_late_impressions_rebuild_their_day_also_after_a_kill(
    server: Any, tmp_path: Path, instant: str
) -> None:
    config, version, shown = _late_shop(tmp_path)
    lake = LakePaths(config.lake)
    days = {name: table for name, table in _days_of(config, version).items() if LATE not in name}
    features = lake.features(version).partition(LATE)
    before = read_manifest(features)
    assert run(server, tmp_path, instant, version) == -signal.SIGKILL
    assert read_manifest(features) == before  # readers see the old features, or all of the new ones
    assert run(server, tmp_path, "never", version) == 0
    assert files_below(tmp_path / "temporary") == []
    after = _days_of(config, version)
    assert {name: table for name, table in after.items() if LATE not in name} == days
    rows = cases.read_rows(lake.prepared(config.name).partition(LATE)).set_index("row_id")
    places = rows["place_shown"]
    assert places.notna().sum() >= len(places) / 3
    assert all(places[row_id] == place for row_id, place in shown.items() if row_id in places)
    encoded = cases.read_rows(features).set_index("row_id")["place_shown"]
    assert (encoded == places.fillna(0)[encoded.index]).all()
    counted = cases.read_rows(lake.value_counts.partition(LATE))
    of_places = counted[counted["column"] == "place_shown"]
    assert of_places["count"].sum() == len(places)
    assert read_manifest(lake.profiles(config.name).partition(LATE)).facts["columns"]["place_shown"][
        "cells"
    ] == int(places.notna().sum())


def _days_of(config: Config, version: str) -> dict[str, Any]:
    """The files of the days of each table whose rows have positions."""
    lake = LakePaths(config.lake)
    tables = (
        lake.prepared(config.name),
        lake.value_counts,
        lake.profiles(config.name),
        lake.features(version),
    )
    return {f"{table.name} {dt}": read_manifest(table.partition(dt)) for table in tables for dt in DAYS[:5]}
