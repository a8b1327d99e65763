"""Logs whose rows need a preparation: processes of this machine publish what Spark frames publish."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from conf.errors import InfrastructureError
from conf.types import SPLITS, Config
from etl.build import BuildResult
from etl.ops.tables import RARE, VOCABULARY, workflow_table
from etl.prepare.task_passes import TaskPasses
from storage import file_io
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths, Partition
from tests.etl import cases
from tests.etl.tasks_here import TasksHere

DAYS = [f"2026-03-0{day}" for day in range(1, 7)]
FIRST, SECOND = DAYS[4], DAYS[5]
COLUMNS = ["clicked", "who", "what", "visit", "price", "place", "at"]
SHOP: dict[str, Any] = {
    "log": {
        "path": "{data}/{date}.csv",
        "format": "csv",
        "separator": ";",
        "columns": [
            {"name": "clicked", "type": "int"},
            {"name": "who", "type": "int"},
            {"name": "what", "type": "string"},
            {"name": "visit", "type": "string"},
            {"name": "price", "type": "float"},
            {"name": "place", "type": "string"},
            {"name": "at", "type": "int"},
        ],
        "label": {"column": "clicked"},
        "event_time": {"column": "at"},
    },
    "users": {
        "path": "{data}/users.csv",
        "format": "csv",
        "separator": ";",
        "columns": [
            {"name": "who", "type": "int"},
            {"name": "age", "type": "int"},
            {"name": "city", "type": "string"},
        ],
    },
    "items": {
        "path": "{data}/items.csv",
        "format": "csv",
        "separator": ";",
        "columns": [{"name": "what", "type": "string"}, {"name": "kind", "type": "string"}],
    },
    "keys": {"user": "who", "item": "what"},
    "features": [
        {"columns": ["age", "price"], "kind": "dense", "ops": ["fill_median", "normalize"]},
        {"columns": ["who", "city", "kind", "place"], "kind": "categorical", "ops": ["categorify"]},
        {
            "columns": ["what"],
            "kind": "categorical",
            "ops": [{"categorify": {"min_count": 1, "share": "what"}}],
        },
    ],
    "scopes": {"user": ["age", "who", "city"], "item": ["what", "kind"]},
    "split": {"by": "day", "train_days": 3, "validation_days": 1, "test_days": 1, "min_train_days": 1},
    "quality": {"max_bad_share": 0.5, "max_misdated_share": 1},
    "output": {"row_group_rows": 50},
}
HISTORY = {
    "columns": ["history"],
    "kind": "multi_hot",
    "ops": [{"categorify": {"min_count": 1, "share": "what", "counts": False}}],
}
WITH_HISTORY: dict[str, Any] = {
    "history": {"length": 4, "days": 2},
    "features": [*SHOP["features"], HISTORY],
    "scopes": {**SHOP["scopes"], "user": ["age", "who", "city", "history"]},
}
LAGS = [
    {"difference_lag": {"by": ["who"], "columns": ["price"]}},
    {"filter": {"keep": "price < 90"}},
]
WITH_LAGS: dict[str, Any] = {
    "prepare": LAGS,
    "features": [
        *SHOP["features"],
        {"columns": ["price_difference_lag_1"], "kind": "dense", "ops": [{"fill": {"value": 0}}]},
    ],
}
GROUPED: dict[str, Any] = {
    "prepare": [
        {
            "groupby": {
                "by": ["who", "what", "city"],
                "aggregates": {"price": ["sum", "max"], "place": ["list"], "kind": ["first"], "age": ["min"]},
            }
        }
    ],
    "features": [
        {"columns": ["price_sum", "age_min"], "kind": "dense", "ops": ["fill_median", "normalize"]},
        {"columns": ["what", "kind_first", "city"], "kind": "categorical", "ops": ["categorify"]},
        {"columns": ["place_list"], "kind": "multi_hot", "ops": ["categorify"]},
    ],
    "scopes": {},
}
ONE_TABLE: dict[str, Any] = {"log": {**SHOP["log"], "path": "{data}/2026*.csv"}}
CASES: dict[str, dict[str, Any]] = {
    "history, negatives and tables": {**WITH_HISTORY, "negatives": {"per_positive": 3, "seed": 5}},
    "groups": {**WITH_HISTORY, "keys": {"user": "who", "item": "what", "group": "visit"}},
    "without times": {**WITH_HISTORY, "log": {**SHOP["log"], "event_time": None}},
    "differences": WITH_LAGS,
    "groupby": GROUPED,
    "leave last out": {
        **ONE_TABLE,
        **WITH_HISTORY,
        "history": {"length": 4},
        "split": {"by": "leave_last_out"},
        "negatives": {"per_positive": 2, "train": False},
    },
    "fraction of times": {
        **ONE_TABLE,
        "split": {"by": "fraction", "train": 0.6, "validation": 0.2},
        "negatives": {"per_positive": 2},
    },
    "fraction of positions": {
        **WITH_HISTORY,
        "log": {**ONE_TABLE["log"], "event_time": None},
        "history": {"length": 4},
        "split": {"by": "fraction", "train": 0.6, "validation": 0.2},
        "negatives": {"per_positive": 2},
    },
    "grouped fraction": {**ONE_TABLE, **GROUPED, "split": {"by": "fraction", "train": 0.6}},
}


def _write(folder: Path) -> None:
    """Days of 30 users and 25 items. Some lines are malformed, some keys are missing or not in the tables."""
    draw = random.Random(3)
    folder.mkdir()
    for number, day in enumerate(DAYS):
        rows: list[list[Any]] = []
        for _ in range(160):
            user, item = draw.randrange(30), f"item {int(draw.paretovariate(1)) % 25}"
            at = 1772323200 + number * 86400 + draw.randrange(0, 300) * 100 - (draw.random() < 0.05) * 90000
            price = draw.choice(["", 1, 2.5, 40, 95, "x" if draw.random() < 0.1 else 3])
            who = "" if draw.random() < 0.03 else user
            rows.append([draw.choice("0011"), who, item, user % 7, price, draw.choice(["", "a", "b"]), at])
        with (folder / f"{day}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, delimiter=";").writerows([COLUMNS, *rows])
    users = [[user, draw.choice(["", 20, 40]), draw.choice(["", "Köln", "Oslo"])] for user in range(2, 34)]
    items = [[f"item {item}", draw.choice(["", "war", "love"])] for item in range(27) if item != 4]
    for name, header, table in (("users", "who age city", users), ("items", "what kind", items)):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, delimiter=";").writerows([header.split(), *table])


def _rows(partition: Partition, order: str, split: str | None = None) -> list[dict[str, Any]]:
    """The rows of a partition, sorted. Lists stay in their order."""
    paths = data_files(partition, read_manifest(partition), split)
    rows = [row for path in paths for row in pq.read_table(path, partitioning=None).to_pylist()]
    return sorted(rows, key=lambda row: (row.get(order) is not None, row.get(order), json.dumps(row)))


def _tables(config: Config, built: BuildResult, run_date: str) -> dict[str, Any]:
    lake, version = LakePaths(config.lake), built.workflow.version
    tables: dict[str, Any] = {
        table: _rows(workflow_table(lake, version, table), "value") for table in (VOCABULARY, RARE)
    }
    stored = file_io.read_json(f"{lake.workflow(version)}/workflow.json")
    tables["chains"] = [chain["steps"] for chain in stored["chains"]]
    divided = config.split.by != "day"
    for dt in built.features:
        partition = lake.features(version).partition(dt)
        for split in SPLITS if divided else (None,):
            tables[f"features {dt} {split}"] = _rows(partition, "row_id", split)
        tables[f"rows in {dt}"] = (read_manifest(partition).rows_in, read_manifest(partition).dropped)
        quarantine = _rows(lake.quarantine.partition(dt), "row_id")
        tables[f"quarantine {dt}"] = [
            {**row, "source_file": Path(row["source_file"]).name} for row in quarantine
        ]
        for split in SPLITS if divided else (None,):
            if divided or dt in DAYS[:5]:
                profile = lake.profiles(config.name, split).partition(dt)
                tables[f"profile {dt} {split}"] = read_manifest(profile).facts
    for name, side, key in (
        ("users", lake.users(version), "user_key"),
        ("items", lake.items(version), "item_key"),
    ):
        partition = side.partition(run_date)
        tables[name] = _rows(partition, key)
        tables[f"facts of {name}"] = read_manifest(partition).facts
    [quality] = file_io.list_files(f"{config.lake}/quality/{config.name}/dt={run_date}")
    tables["quality"] = file_io.read_json(quality.path)["facts"]
    tables["members"] = [
        (split, member.dt, member.label, member.clicks)
        for split, members in built.dataset.splits.items()
        for member in members
    ]
    tables["missing"] = [(one.section, one.in_log, one.without_row) for one in built.missing]
    return tables


def _config(folder: Path, name: str) -> Config:
    config = cases.write_config(folder, SHOP, CASES[name])
    _write(folder / "raw")
    return config


def test_lost_rows_stop_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program deletes stored rows while the tables of the day are read."""
    config = _config(tmp_path, "without times")
    workers = TasksHere(2, no_session)
    read_inputs = TaskPasses._day_inputs

    def lose_rows(self: TaskPasses, *arguments: Any) -> Any:
        next(workers.folder.glob("nightrank-rows-*")).unlink()
        return read_inputs(self, *arguments)

    monkeypatch.setattr(TaskPasses, "_day_inputs", lose_rows)
    with pytest.raises(InfrastructureError, match=r"good rows were stored .* but \d+ were read"):
        cases.run_build(workers, config, FIRST)
    assert not (tmp_path / "lake/features").exists()


def no_session() -> SparkSession:
    raise AssertionError("the build needs no Spark session")


@pytest.mark.parametrize("name", CASES)
def test_both_roads_publish_equal_tables(spark: SparkSession, tmp_path: Path, name: str) -> None:
    (tmp_path / "frames").mkdir()
    (tmp_path / "blocks").mkdir()
    config = _config(tmp_path / "frames", name)
    expected = _tables(config, cases.run_build(spark, config, FIRST), FIRST)
    config = _config(tmp_path / "blocks", name)
    built = cases.run_build(TasksHere(2, no_session), config, FIRST)
    tables = _tables(config, built, FIRST)
    assert tables.keys() == expected.keys()
    for table, rows in tables.items():
        assert rows == expected[table], table
    assert any("features" in table and rows for table, rows in tables.items())


def _without_users(folder: Path) -> Config:
    """A log with histories and negatives. All rows of the second day are those of anonymous visitors."""
    keys = {**SHOP["keys"], "rows_without_user": "leave_out"}
    config = cases.write_config(folder, SHOP, CASES["history, negatives and tables"], {"keys": keys})
    _write(folder / "raw")
    for day in DAYS:
        path = folder / f"raw/{day}.csv"
        rows = [line.split(";") for line in path.read_text().splitlines()[:40]]
        if day == DAYS[1]:
            rows = [rows[0], *([row[0], "", *row[2:]] for row in rows[1:])]
        path.write_text("".join(f"{';'.join(row)}\n" for row in rows))
    return config


@pytest.mark.parametrize("road", ["tasks", "frames"])
def test_a_train_day_whose_rows_are_all_left_out_is_published_without_rows(
    spark: SparkSession, tmp_path: Path, road: str
) -> None:
    config = _without_users(tmp_path)
    built = cases.run_build(TasksHere(1, no_session) if road == "tasks" else spark, config, FIRST)
    assert [member.dt for member in built.dataset.splits["train"]] == DAYS[:3]
    published = {dt: manifest.rows for dt, manifest in built.features.items()}
    assert [dt for dt, rows in published.items() if not rows] == [DAYS[1]]
    assert built.features[DAYS[1]].rows_in == 39
    assert sum(built.features[DAYS[1]].dropped.values()) == 39
