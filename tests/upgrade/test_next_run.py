"""This release continues a lake of release 0.1.0: lists by the old champion, then a training from it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from conf.load import load_config
from jobs.chain.steps import RunPlan
from storage.dataset import read_dataset
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths, Partition
from storage.run_context import RunContext
from tests.upgrade.old_lake import (
    CHAMPION,
    CHAMPION_WORKFLOW,
    CONFIG,
    NAME,
    NEXT,
    SECOND,
    unpack,
)
from training.registry.model_json import read_description
from training.registry.versions import challenger_of, model_path


def run_stages(spark: SparkSession, lake: LakePaths, *, retrain: bool) -> None:
    """The stages of the next run date, as nightly would run them, in the session of this process."""
    overrides = [
        f"lake={lake.root}",
        f"deliver.sinks=[{{kind: json_lines, name: files, path: {Path(lake.root).parent}/out}}]",
    ]
    planned = RunPlan(load_config(str(CONFIG), overrides), NEXT, retrain=retrain)
    for steps in (planned.steps_before_gate, planned.steps_after_gate):
        for step in steps():
            config = load_config(str(CONFIG), [*overrides, *step.overrides])
            stage = import_module(f"jobs.{step.job}")
            stage.run(RunContext(step.job, config, step.run_date, _spark=spark))


def rows(partition: Partition) -> pd.DataFrame:
    files = data_files(partition, read_manifest(partition))
    return pd.concat([pq.ParquetFile(path).read().to_pandas() for path in files], ignore_index=True)


def vocabulary(lake: LakePaths, version: str) -> Mapping[tuple[str, str], int]:
    table = rows(Partition("workflow", "", f"{lake.workflow(version)}/vocabulary", 3))
    return dict(zip(zip(table["column"], table["value"], strict=True), table["id"], strict=True))


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> LakePaths:
    return unpack(tmp_path_factory.mktemp("upgrade"))


def test_daily_lists_come_from_the_old_champion(spark: SparkSession, lake: LakePaths) -> None:
    before = rows(lake.recommendations.partition(SECOND))
    run_stages(spark, lake, retrain=False)
    published = rows(lake.recommendations.partition(NEXT))
    assert set(published["model_version"]) == {CHAMPION}
    assert set(published["workflow_version"]) == {CHAMPION_WORKFLOW}
    assert len(published) == 5 * published["user_id"].nunique()
    pd.testing.assert_frame_equal(rows(lake.recommendations.partition(SECOND)), before)
    assert list(Path(lake.root, "reports").glob(f"{NEXT}.html"))
    measured = read_manifest(lake.measures.partition(SECOND))
    assert measured.facts["users"] > 0, "the old release's lists are measured against the next day's clicks"


def test_a_training_starts_from_the_old_champion(spark: SparkSession, lake: LakePaths) -> None:
    run_stages(spark, lake, retrain=True)
    dataset = read_dataset(lake, NEXT)
    description = read_description(model_path(lake, NAME, challenger_of(lake, NAME, NEXT)))
    assert description["parent"] == CHAMPION
    old = vocabulary(lake, CHAMPION_WORKFLOW)
    new = vocabulary(lake, description["workflow_version"])
    assert {key: new[key] for key in old} == old
    assert dataset.run_date == NEXT
    lists = read_manifest(lake.evaluations.partition(NEXT)).facts["lists"]
    assert lists["users"] > 0
    assert lists["champion"]["items"] == lists["challenger"]["items"] > 0, "the old workflow makes lists too"
