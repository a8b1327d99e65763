"""Features from before the test rows, by the dataset's workflow and by an earlier one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from conf.types import Config
from etl.build import BuildResult
from scoring.evaluation.features_before_test import features_before_test, rows_before_test
from storage.manifest import MANIFEST_NAME, is_published
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.etl import cases

DAYS = ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04"]
Side = Literal["user", "item"]
KEYS = {"user": "user_key", "item": "item_key"}


@dataclass
class TwoBuilds:
    """A fit on the first two days, and its extension, whose test day is the last of DAYS."""

    context: RunContext
    first: BuildResult
    second: BuildResult

    def features(self, built: BuildResult, side: Side) -> pd.DataFrame:
        """The features before the test of the second build, by the workflow of `built`."""
        spec = built.workflow.spec
        frame = features_before_test(self.context, self.second.dataset, spec, side).toPandas()
        return frame.sort_values(KEYS[side]).reset_index(drop=True)


@pytest.fixture(scope="module")
def builds(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> TwoBuilds:
    folder = tmp_path_factory.mktemp("builds")
    config = cases.write_config(folder)
    for seed, day in enumerate(DAYS):
        cases.write_day(folder / f"raw/dt={day}", cases.make_lines(day, 120, seed))
    first = cases.run_build(spark, config, DAYS[2])
    again = config.model_copy(update={"workflow": config.workflow.model_copy(update={"mode": "retrain"})})
    second = cases.run_build(spark, again, DAYS[3], first.workflow.version)
    return TwoBuilds(RunContext("test", config, DAYS[3], open_session=lambda _: spark), first, second)


def latest(config: Config, built: BuildResult, side: Side, days: list[str]) -> pd.DataFrame:
    """The oracle: the last of the published rows of each key, by pandas."""
    table = LakePaths(config.lake).features(built.workflow.version)
    rows = pd.concat([cases.read_rows(table.partition(day)).assign(day=day) for day in days])
    names = [feature.name for feature in built.workflow.spec.scoped(side)]
    last = rows.sort_values(["day", "row_id"]).groupby(KEYS[side]).tail(1)
    return last.sort_values(KEYS[side])[[KEYS[side], *names]].reset_index(drop=True)


@pytest.mark.parametrize("side", ["user", "item"])
def test_neither_workflow_uses_the_test_day(builds: TwoBuilds, side: Side) -> None:
    """The last day has rows of the same users and items with other values."""
    config, before = builds.context.config, DAYS[:3]
    expected = latest(config, builds.second, side, before)
    pd.testing.assert_frame_equal(builds.features(builds.second, side), expected, check_dtype=False)
    changed = latest(config, builds.second, side, DAYS).merge(expected, how="inner")
    assert len(changed) < len(expected)
    by_first = builds.features(builds.first, side)
    pd.testing.assert_frame_equal(by_first, latest(config, builds.first, side, before), check_dtype=False)


def test_features_before_the_validation_split_use_train_days_only(builds: TwoBuilds) -> None:
    """The train split of the second build has the days before its validation day."""
    config, dataset = builds.context.config, builds.second.dataset
    days = [member.dt for member in dataset.splits["train"]]
    assert set(days) < {*DAYS[:3]}
    spec = builds.second.workflow.spec
    for side in ("user", "item"):
        frame = features_before_test(builds.context, dataset, spec, side, before="validation").toPandas()
        actual = frame.sort_values(KEYS[side]).reset_index(drop=True)
        expected = latest(config, builds.second, side, days)
        pd.testing.assert_frame_equal(actual, expected, check_dtype=False)


def test_a_day_that_is_not_published_is_encoded_again(builds: TwoBuilds) -> None:
    expected = builds.features(builds.first, "user")
    partition = (
        LakePaths(builds.context.config.lake).features(builds.first.workflow.version).partition(DAYS[1])
    )
    manifest = Path(partition.file(MANIFEST_NAME))
    kept = manifest.read_text()
    manifest.unlink()
    try:
        pd.testing.assert_frame_equal(builds.features(builds.first, "user"), expected)
    finally:
        manifest.write_text(kept)


@pytest.mark.parametrize("side", ["user", "item"])
def test_this_process_computes_the_same_features(builds: TwoBuilds, side: Side) -> None:
    """The workflow of the first build has not encoded a day that lost its manifest, so it is encoded here."""

    def no_session(_: RunContext) -> SparkSession:
        raise AssertionError("no session is needed")

    here = RunContext("test", builds.context.config, DAYS[3], open_session=no_session, in_process=True)
    for built in (builds.first, builds.second):
        expected = builds.features(built, side)
        partition = LakePaths(here.config.lake).features(built.workflow.version).partition(DAYS[1])
        if built is builds.first:
            Path(partition.file(MANIFEST_NAME)).unlink()
        rows = rows_before_test(here, builds.second.dataset, built.workflow.spec, side)
        assert isinstance(rows, pa.Table)
        actual = rows.to_pandas().sort_values(KEYS[side]).reset_index(drop=True)
        pd.testing.assert_frame_equal(actual, expected)
        assert is_published(partition)
