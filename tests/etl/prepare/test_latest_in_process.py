"""The latest features of users and items are the same with processes of this machine and with Spark."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from conf.errors import DataError
from conf.types import Config, Split
from etl.build import BuildResult
from etl.latest import latest_features
from etl.latest.latest_features import LatestHistories, latest_histories, publish_latest
from etl.passes import raw_days
from etl.raw.erased_users import add_erased, list_or_new
from etl.raw.files import RawFiles
from etl.workflow.feature_plan import FeaturePlan, plan_of
from etl.workflow.fitted_workflow import load_workflow
from jobs import model_training, train_model
from jobs.build_candidates import run as build_candidates
from jobs.evaluate_model import run as evaluate_model
from jobs.measure_recommendations import run as measure_recommendations
from jobs.score_daily import run as score_daily
from scoring.evaluation import features_before_test
from scoring.evaluation.features_before_test import rows_before_test
from spark.choose_workers import SparkWorkers
from spark.rows import Rows
from spark.workers import LocalWorkers, Workers
from storage.manifest import Manifest, data_files, read_manifest
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.etl import cases
from tests.etl.prepare.small_shop import IN_ONE_FILE, RUN_DATE, no_session, write_shop
from tests.etl.tasks_here import TasksHere
from training.loop.run import train_in_process
from training.registry import mlflow_mirror


@dataclass
class Shop:
    """A lake that Spark has built. `folder` has the lake, the log and the tables."""

    spark: SparkSession
    folder: Path
    config: Config
    built: BuildResult

    def copied(self, folder: Path, **changes: Any) -> tuple[Config, LakePaths]:
        """A copy of the lake without the latest features, and the configuration with other settings."""
        shutil.copytree(self.folder / "lake", folder / "lake")
        for table in ("users", "items"):
            shutil.rmtree(folder / "lake" / table)
        config = self.config.model_copy(update={"lake": str(folder / "lake"), **changes})
        return config, LakePaths(config.lake)

    def publish(self, workers: Workers, config: Config) -> dict[str, Manifest]:
        lake = LakePaths(config.lake)
        workflow = load_workflow(lake, self.built.workflow.version, workers=workers)
        days = [
            read_manifest(lake.features(workflow.version).partition(dt)) for dt in sorted(self.built.features)
        ]
        return publish_latest(
            workers, plan_of(config), lake, workflow, RUN_DATE, days, raw_days(plan_of(config), RUN_DATE)
        )


@pytest.fixture(scope="module", params=[{}, IN_ONE_FILE], ids=["by day", "in one file"])
def shop(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Shop:
    folder = tmp_path_factory.mktemp("shop")
    config = write_shop(folder, request.param)
    return Shop(spark, folder, config, cases.run_build(spark, config, RUN_DATE))


@pytest.fixture
def histories(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Histories as tables, which this fixture lets Spark compute."""

    def histories_of(
        workers: Workers,
        plan: FeaturePlan,
        lake: LakePaths,
        splits: Mapping[Split, Sequence[RawFiles]],
        *,
        before: Split | None = None,
    ) -> LatestHistories | None:
        found = latest_histories(SparkWorkers(spark), plan, lake, splits, before=before)
        if found is None or found.rows is None or not isinstance(workers, LocalWorkers):
            return found
        assert not isinstance(found.rows, pa.Table)
        rows = [tuple(row) for row in found.rows.collect()]
        lists = pa.array([row[1] for row in rows], pa.list_(pa.string()))
        return LatestHistories(
            pa.table({"user_key": [row[0] for row in rows], "history": lists}), found.digest
        )

    monkeypatch.setattr(latest_features, "histories_of", histories_of)
    monkeypatch.setattr(features_before_test, "histories_of", histories_of)


def read(lake: LakePaths, manifest: Manifest) -> pa.Table:
    """The published rows, in the order of the files."""
    version = manifest.table.split("/")[1]
    table = lake.users(version) if manifest.table.startswith("users") else lake.items(version)
    files = data_files(table.partition(RUN_DATE), manifest)
    return pa.concat_tables([pq.read_table(path, partitioning=None) for path in files])


def items_of(config: Config, missing: str) -> Any:
    assert config.items is not None
    return config.items.model_copy(update={"missing": missing})


def published_alike(shop: Shop, folder: Path, erased: list[str], **changes: Any) -> dict[str, Manifest]:
    """Publishes on both roads, compares the tables, and returns the manifests of this process."""
    config, lake = shop.copied(folder / "both", **changes)
    if erased:
        add_erased(lake, list_or_new(lake), erased, RUN_DATE)
    by_road = []
    for name, workers in (
        ("spark", SparkWorkers(shop.spark)),
        ("here", TasksHere(2, no_session, str(folder))),
    ):
        shutil.copytree(folder / "both", folder / name)
        own = config.model_copy(update={"lake": str(folder / name / "lake")})
        by_road.append((LakePaths(own.lake), own, shop.publish(workers, own)))
    (lake_there, there, of_spark), (lake_here, here, found) = by_road
    assert found.keys() == of_spark.keys() == {"users", "items"}
    for side, manifest in found.items():
        expected = of_spark[side]
        assert (manifest.schema, manifest.inputs) == (expected.schema, expected.inputs)
        assert (manifest.facts, manifest.rows_in) == (expected.facts, expected.rows_in)
        assert read(lake_here, manifest).to_pylist() == read(lake_there, expected).to_pylist()
        assert manifest.rows == len(read(lake_here, manifest)) > 10
    # A lake can change between the two roads: nothing is written again.
    assert shop.publish(SparkWorkers(shop.spark), here) == found
    assert shop.publish(TasksHere(1, no_session, str(folder)), there) == of_spark
    return found


@pytest.mark.parametrize("missing", ["serve", "leave_out"])
@pytest.mark.parametrize("erased", [[], ["u3", "u7", "u0"]])
def test_published_tables_are_those_of_spark(
    shop: Shop, tmp_path: Path, missing: str, erased: list[str], histories: None
) -> None:
    found = published_alike(shop, tmp_path, erased, items=items_of(shop.config, missing))
    facts = found["users"].facts["of_log"]
    assert facts["in_log"] == 14 - len(erased)
    assert facts["without_row"] == 2 - ("u0" in erased)
    assert found["items"].facts["of_log"]["without_row"] == 2
    assert found["items"].rows == 15 + (2 if missing == "serve" else 0)


def test_users_without_a_row_can_stop_the_job_on_both_roads(
    shop: Shop, tmp_path: Path, histories: None
) -> None:
    quality = shop.config.quality.model_copy(update={"users_without_row_stop": 0.1})
    config, lake = shop.copied(tmp_path, quality=quality)
    problems = []
    for workers in (SparkWorkers(shop.spark), TasksHere(1, no_session, str(tmp_path))):
        with pytest.raises(DataError) as caught:
            shop.publish(workers, config)
        problems.append((caught.value.problem, caught.value.remedy))
    assert problems[0] == problems[1]
    assert "2 of 14 users of the log have no row" in problems[0][0]
    assert not (Path(lake.root) / "users").exists()


def as_rows(rows: Rows) -> list[dict[str, Any]]:
    found = rows.to_pylist() if isinstance(rows, pa.Table) else [row.asDict() for row in rows.collect()]
    return sorted(found, key=repr)


@pytest.mark.parametrize("side", ["user", "item"])
@pytest.mark.parametrize("before", ["test", "validation"])
def test_features_before_the_test_are_those_of_spark(
    shop: Shop, side: Any, before: Split, histories: None
) -> None:
    spec = shop.built.workflow.spec
    of_spark = RunContext("test", shop.config, RUN_DATE, _spark=shop.spark)
    here = RunContext("test", shop.config, RUN_DATE, open_session=no_session, in_process=True)
    expected = rows_before_test(of_spark, shop.built.dataset, spec, side, before=before)
    found = rows_before_test(here, shop.built.dataset, spec, side, before=before)
    assert isinstance(found, pa.Table)
    assert not isinstance(expected, pa.Table)
    assert found.column_names == expected.columns
    assert as_rows(found) == as_rows(expected)
    assert len(found) > 10


def test_the_stages_of_a_night_after_the_features_need_no_session(
    shop: Shop, tmp_path: Path, histories: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(shop.folder / "lake", tmp_path / "lake")
    config = shop.config.model_copy(update={"lake": str(tmp_path / "lake")})
    monkeypatch.setattr(mlflow_mirror, "prepare", lambda *_: None)
    monkeypatch.setattr(mlflow_mirror, "set_aliases", lambda *_: None)
    monkeypatch.setattr(mlflow_mirror, "track_training", lambda *_: None)
    monkeypatch.setattr(model_training, "train_plan", lambda _, plan, __: train_in_process(plan))
    summaries = {}
    stages = (train_model.run, evaluate_model, build_candidates, score_daily, measure_recommendations)
    for stage in stages:
        context = RunContext(stage.__module__, config, RUN_DATE, open_session=no_session)
        summaries[stage.__module__.rpartition(".")[2]] = stage(context)
        assert context.started_spark is None
    assert summaries["evaluate_model"].facts["promoted"]
    assert summaries["evaluate_model"].facts["list_users"] > 5
    users = LakePaths(config.lake).users(shop.built.workflow.version).partition(RUN_DATE)
    assert summaries["score_daily"].rows_in == read_manifest(users).rows
    assert summaries["score_daily"].rows_out == read_manifest(users).rows * config.score.k
