"""Tables of Spark's catalogue as raw tables: copies of days, and the features that are computed from them."""

from __future__ import annotations

import datetime
import decimal
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from conf.errors import ConfigError, DataError
from conf.raw_types import RawTable
from conf.types import Config
from etl.prepare.unneeded_days import delete_unneeded_days
from etl.raw.files import find_raw, require_raw
from etl.raw.table_copies import copy_of
from etl.readers.discovery import open_table
from etl.spark import catalogue, copy_tables
from jobs.stages import build_features, erase_user, plan_night
from storage.lineage import RunLineage
from storage.manifest import data_files, read_manifest
from storage.paths import Lake
from storage.run_context import RunContext
from tests.etl import cases
from tests.etl.text.test_without_a_jvm import DAYS, GROUPS, tables

COLUMNS: list[dict[str, Any]] = [
    {"name": "label", "type": "int"},
    {"name": "at", "type": "timestamp"},
    {"name": "I1", "type": "int"},
    {"name": "I2", "source": "visits", "type": "int"},
    {"name": "user", "type": "string"},
    {"name": "item", "type": "string"},
    {"name": "C1", "type": "string"},
]
LOG: dict[str, Any] = {
    **cases.LOG["log"],
    "separator": None,
    "columns": COLUMNS,
    "event_time": {"column": "at"},
}


def rows_of(day: str, seed: int, rows: int = 80) -> pa.Table:
    """A day with nulls and fractions in a column of integers. The times are distinct and ascending."""
    draw = random.Random(seed)
    start = datetime.datetime.fromisoformat(f"{day}T00:00:00+00:00")
    times = [start + datetime.timedelta(seconds=60 * row, microseconds=row) for row in range(rows)]
    numbers = [None if draw.random() < 0.2 else float(draw.randrange(-5, 100)) for _ in range(rows)]
    numbers[7] = 0.5
    return pa.table(
        {
            "label": [draw.choice([0, 0, 1]) for _ in range(rows)],
            "at": pa.array(times, pa.timestamp("us", "UTC")),
            "I1": numbers,
            "visits": [draw.randrange(9) for _ in range(rows)],
            "user": [f"u{draw.randrange(20):02}" for _ in range(rows)],
            "item": [f"i{draw.randrange(30)}" for _ in range(rows)],
            "C1": [draw.choice([None, "a", "ö", "b"]) for _ in range(rows)],
        }
    )


@dataclass
class Shop:
    """A database of the session's catalogue, with the folder of a test."""

    spark: SparkSession
    folder: Path
    name: str
    lineage: RunLineage = field(default_factory=lambda: RunLineage("build_features", "test", DAYS[-1]))

    def view(self, name: str, rows: pa.Table) -> None:
        path = self.folder / f"files/{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(rows, path)
        self.spark.read.parquet(str(path)).createOrReplaceTempView(name)

    def fill(self, day: str, seed: int, rows: int = 80) -> None:
        """Replaces the rows of a day of the partitioned table `clicks`."""
        self.view("new_rows", rows_of(day, seed, rows))
        self.sql(f"ALTER TABLE {{}}.clicks DROP IF EXISTS PARTITION (dt = '{day}')")
        self.sql(f"INSERT INTO {{}}.clicks PARTITION (dt = '{day}') SELECT * FROM new_rows")

    def sql(self, text: str) -> Any:
        return self.spark.sql(text.format(self.name))

    def config(self, path: str, *changes: dict[str, Any]) -> Config:
        log = {**LOG, "format": "spark_table", "path": path.format(self.name, date="{date}")}
        return cases.write_config(self.folder, GROUPS, {"log": log}, *changes)

    def context(self, config: Config) -> RunContext:
        self.lineage = RunLineage("build_features", "test", DAYS[-1])
        return RunContext(
            "build_features", config, DAYS[-1], open_session=lambda _: self.spark, recorder=self.lineage
        )

    def build(self, config: Config) -> dict[str, Any]:
        build_features.run(self.context(config))
        return tables(Lake(config.lake))

    def copy(self, config: Config) -> None:
        copy_tables.copy_tables(self.spark, config, DAYS[-1], RunLineage("copy", "test", DAYS[-1]))

    def copies(self, config: Config, *days: str) -> list[dict[str, Any]]:
        """The rows of the copies of some days, in the order of the files."""
        paths = [path for day in days for path in require_raw(config, config.log, day).paths]
        return [row for path in paths for row in pq.read_table(path, partitioning=None).to_pylist()]


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Iterator[Shop]:
    name = "shop_of_copies"
    spark.sql(f"DROP DATABASE IF EXISTS {name} CASCADE")
    spark.sql(f"CREATE DATABASE {name} LOCATION '{tmp_path / 'warehouse'}'")
    shop = Shop(spark, tmp_path, name)
    shop.view("new_rows", rows_of(DAYS[0], 0))
    shop.sql(
        "CREATE TABLE {}.clicks (label LONG, at TIMESTAMP, I1 DOUBLE, visits LONG, user STRING, item STRING, "
        "C1 STRING, dt STRING) USING parquet PARTITIONED BY (dt)"
    )
    for seed, day in enumerate(DAYS):
        shop.fill(day, seed)
    yield shop
    spark.sql(f"DROP DATABASE {name} CASCADE")


def expected_tables(shop: Shop) -> dict[str, Any]:
    folder = shop.folder / "plain"
    folder.mkdir()
    config = cases.write_config(folder, GROUPS, {"log": {**LOG, "format": "parquet"}})
    for seed, day in enumerate(DAYS):
        path = folder / f"raw/dt={day}/clicks.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(rows_of(day, seed), path)
    build_features.run(RunContext("build_features", config, DAYS[-1]))
    return tables(Lake(config.lake))


@pytest.mark.processes
def test_features_are_those_of_a_parquet_log(shop: Shop) -> None:
    expected = expected_tables(shop)
    config = shop.config("{}.clicks/dt={date}")
    mine = shop.build(config)
    for day in DAYS:
        assert mine[f"features {day}"] == expected[f"features {day}"]
        assert [row["reason"] for row in mine[f"quarantine {day}"]] == ["integer:I1"]
    read = [path for path in shop.lineage.inputs if path.startswith("spark-table://")]
    assert read == [
        f"spark-table://spark_catalog/shop_of_copies.clicks/dt={day}" for day in ["2025-12-31", *DAYS]
    ]
    files = {day: require_raw(config, config.log, day).paths for day in DAYS}
    assert shop.build(config) == mine
    assert {day: require_raw(config, config.log, day).paths for day in DAYS} == files
