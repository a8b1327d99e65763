"""A lake of a small log with all tables that have ids of users, and the rows of its tables as pandas frames."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from conf.types import Config
from etl.erasure.lake_tables import PublishedPartition, published_partitions
from spark.workers import LocalWorkers
from storage import file_io
from storage.dataset import read_dataset
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths
from storage.publish import publish_facts, publish_rows
from tests.etl import cases
from tests.etl.tasks_here import TasksHere
from tests.etl.text.test_two_passes import GROUPS

DAYS = ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04"]
FIRST, RUN_DATE = DAYS[2], DAYS[3]
# The second is a prefix of the third; the fourth is in one line only, which does not parse.
USER, PREFIX, LONGER, REJECTED = "user 3", "user 5", "user 55", "user 77"
KEYS = ("user_key", "user_id", "user")


def _no_session() -> SparkSession:
    raise AssertionError("no Spark session is needed")


def workers(folder: Path) -> LocalWorkers:
    """Workers without a JVM, with their scratch files outside of the lake."""
    return TasksHere(1, _no_session, str(folder / "scratch"))


def write_log(folder: Path) -> None:
    """Four days of cases.make_lines, with lines of some users that do not parse."""
    for seed, day in enumerate(DAYS):
        lines = cases.make_lines(day, 150, seed)
        for user in (USER, LONGER, REJECTED):
            lines.append("\t".join(["1", "no number", *[""] * 5, user, "item 3", *[""] * 4]))
            lines.append(f"too few\t{user}")
        lines += ["\t".join(["1", *[""] * 6, LONGER, "item 3", *[""] * 4])] * 3
        cases.write_day(folder / f"raw/dt={day}", lines)


def build_lake(folder: Path) -> Config:
    """Builds the features of two run dates: a fit, and its extension; then the tables of other jobs."""
    config = cases.write_config(folder, GROUPS)
    write_log(folder)
    build_twice(folder, config)
    _add_tables(config)
    return config


def build_twice(folder: Path, config: Config) -> None:
    """Runs build_features for both run dates."""
    first = cases.run_build(workers(folder), config, FIRST)
    cases.run_build(workers(folder), retraining(config), RUN_DATE, first.workflow.version)


def retraining(config: Config) -> Config:
    """The configuration of a run with retraining."""
    return config.model_copy(update={"workflow": config.workflow.model_copy(update={"mode": "retrain"})})


def _add_tables(config: Config) -> None:
    """Publishes what build_features does not: candidates, lists, scores, last clicks, and leftovers."""
    lake = LakePaths(config.lake)
    dataset = read_dataset(lake, RUN_DATE)
    version = dataset.workflow_version
    users_partition = lake.users(version).partition(RUN_DATE)
    known = sorted(cases.read_rows(users_partition)["user_key"])
    inputs = {"users": read_manifest(users_partition).digest, "dataset": dataset.digest, "config": "c"}
    candidates = publish_rows(
        pa.table({"user_key": known, "candidates": pa.array([[0, 1]] * len(known), pa.list_(pa.int32()))}),
        lake.candidates(version).partition(RUN_DATE),
        inputs=inputs,
        row_group_rows=4,
        sort_by="user_key",
    )
    listed = [user for user in known if user != PREFIX]  # this user has no list
    entries = [(user, place) for user in listed for place in (1, 2)]
    lists = pa.table(
        {
            "user_id": [user for user, _ in entries],
            "position": pa.array([place for _, place in entries], pa.int32()),
            "item_id": [f"item {place}" for _, place in entries],
        }
    )
    facts = {"users": len(known), "users_without": 1, "users_with_fewer": 1, "k": 2}
    published = publish_rows(
        lists,
        lake.recommendations.partition(RUN_DATE),
        inputs={"users": inputs["users"], "candidates": candidates.digest},
        row_group_rows=5,
        sort_by=["user_id", "position"],
        facts={**facts, "workflow_version": version},
    )
    publish_facts(lake.deliveries.partition(RUN_DATE), inputs={"recommendations": published.digest}, facts={})
    clicks = pa.table({"user_key": known, "items": pa.array([["item 1"]] * len(known))})
    publish_rows(clicks, lake.last_clicks.partition(DAYS[0]), inputs={"raw": "r"}, row_group_rows=100)
    typed = pa.table({"_index": [0, 1, 2], "user": ["user 0", USER, None], "_line": [None, None, "too few"]})
    publish_rows(typed, lake.typed.partition(DAYS[0]), inputs={"raw": "r"}, row_group_rows=100)
    rows = cases.read_rows(lake.features(version).partition(DAYS[3]))
    scores = pa.table(
        {
            "row_id": pa.array(rows["row_id"]),
            "features_dt": [DAYS[3]] * len(rows),
            "probability": pa.array([0.5] * len(rows), pa.float32()),
        }
    )
    publish_rows(scores, lake.scores.partition(RUN_DATE), inputs={"dataset": "d"}, row_group_rows=40)
    leftover = Path(users_partition.file(users_partition.data)) / "akilled/part-0.parquet"
    leftover.parent.mkdir()
    pq.write_table(pa.table({"user_key": [USER]}), leftover)
    lines = Path(config.lake) / "_data/lists/dt=2026-01-04/a1/part-0.json"  # of a sink that is in the lake
    lines.parent.mkdir(parents=True)
    lines.write_text('{"user_id": "user 0"}\n')
    log = Path(lake.logs) / "dt=2026-01-04/build_features.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"the first bad key is {USER}\n")


def frames(config: Config) -> dict[str, pd.DataFrame]:
    """The rows of every partition, by table and partition."""
    return {
        f"{one.partition.table} {one.partition.dt}": _frame(one)
        for one in published_partitions(LakePaths(config.lake), config)
        if one.manifest.files
    }


def manifests(config: Config) -> dict[str, Any]:
    """What the manifest of every partition says, without file names and times."""
    return {
        f"{one.partition.table} {one.partition.dt}": (
            one.manifest.digest,
            dict(one.manifest.inputs),
            one.manifest.rows,
            one.manifest.rows_in,
            dict(one.manifest.dropped),
            {name: value for name, value in one.manifest.facts.items() if name != "made_at"},
        )
        for one in published_partitions(LakePaths(config.lake), config)
    }


def _frame(published: PublishedPartition) -> pd.DataFrame:
    paths = data_files(published.partition, published.manifest)
    return pa.concat_tables(pq.read_table(path, partitioning=None) for path in paths).to_pandas()


def is_of(rows: pd.DataFrame, user: str, days: Mapping[str, set[int]]) -> pd.Series:
    """Whether rows of a table belong to a user, by pandas.

    `days` maps each day to the row_ids of the user's feature rows.
    """
    if "features_dt" in rows and "user_key" not in rows:
        pairs = zip(rows["features_dt"], rows["row_id"], strict=True)
        return pd.Series([row in days.get(day, set()) for day, row in pairs], rows.index)
    if "line" in rows:
        return pd.Series([user in line.rstrip("\r").split("\t") for line in rows["line"]], rows.index)
    if {"column", "value"} <= {*rows.columns}:
        return (rows["column"] == "user") & (rows["value"] == user)
    key = next((name for name in KEYS if name in rows and rows[name].dtype == object), None)
    return rows[key] == user if key else pd.Series(False, rows.index)


def texts_in_lake(config: Config) -> list[str]:
    """Every text of every file of the lake that is not a log: values of Parquet files, and other files whole."""
    texts: list[str] = []
    for path in sorted(Path(config.lake).rglob("*")):
        if not path.is_file() or path.suffix == ".log":
            continue
        if path.suffix == ".parquet":
            table = pq.read_table(path, partitioning=None)
            values = (column.to_pylist() for column in table.columns if column.type == pa.string())
            texts += [value for column in values for value in column if value is not None]
            statistics = pq.read_metadata(path).metadata or {}
            texts += [text.decode(errors="replace") for text in statistics.values()]
        else:
            texts.append(path.read_bytes().decode(errors="replace"))
    return texts


def snapshot(config: Config) -> dict[str, bytes]:
    """The bytes of every file of the lake."""
    root = Path(config.lake)
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def record_of(config: Config) -> dict[str, Any]:
    """The only record of an erasure."""
    [path] = Path(LakePaths(config.lake).erasures).glob("2026*.json")
    values: dict[str, Any] = json.loads(path.read_text())
    return values


def workflow_json(config: Config, version: str) -> dict[str, Any]:
    """The file workflow.json of a version."""
    values: dict[str, Any] = file_io.read_json(f"{LakePaths(config.lake).workflow(version)}/workflow.json")
    return values
