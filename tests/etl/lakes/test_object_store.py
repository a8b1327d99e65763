"""Raw log and lake on s3a://, on an S3 server: build_features by both engines, reruns, and killed writers."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyarrow import fs
from pyspark.sql import SparkSession

from conf.types import Config
from etl.build import BuildResult
from etl.spark.typed_rows import delete_unneeded_days
from storage import file_io
from storage.dataset import read_dataset
from storage.manifest import read_manifest
from storage.paths import Lake
from storage.remove import written_dates
from tests.etl import cases, oracle, raw_oracle
from tests.etl.lakes import lakes
from tests.etl.lakes.conftest import ObjectStore

RUN_DATE = "2026-01-03"
DAYS = ["2026-01-01", "2026-01-02", "2026-01-03"]


@dataclass(frozen=True)
class Run:
    """One run on the object store by one engine, and the results of the oracle."""

    config: Config
    built: BuildResult
    good: dict[str, pd.DataFrame]
    bad: dict[str, pd.DataFrame]
    fitted: oracle.Fitted


@pytest.fixture(scope="module", params=["arrow", "sql"])
def run(
    spark: SparkSession, object_store: ObjectStore, tmp_path_factory: pytest.TempPathFactory, request: Any
) -> Run:
    folder = tmp_path_factory.mktemp("run")
    root = f"{object_store.root}/{request.param}"
    roots = {"lake": f"{root}/lake", "data": f"{root}/raw", "workflow": {"engine": request.param}}
    config = cases.write_config(folder, lakes.SMALL, roots)
    good, bad = {}, {}
    for seed, day in enumerate(DAYS):
        paths = cases.write_day(folder / f"raw/dt={day}", cases.make_lines(day, 100, seed))
        good[day], bad[day] = raw_oracle.parse_log(config, paths)
    lakes.upload(folder / "raw", f"{root}/raw")
    built = cases.run_build(spark, config, RUN_DATE)
    return Run(config, built, good, bad, oracle.fit(config, good[DAYS[0]]))


def test_features_equal_the_oracle(run: Run) -> None:
    version = run.built.workflow.version
    for day in DAYS:
        rows = lakes.read_rows(Lake(run.config.lake).features(version).partition(day))
        expected = oracle.encode(run.config, run.fitted, run.good[day])
        cases.assert_features_equal(rows, expected, run.built.workflow.spec)


def test_quarantine_names_the_objects(run: Run) -> None:
    rows = lakes.read_rows(Lake(run.config.lake).quarantine.partition(DAYS[1]))
    assert len(rows) == len(run.bad[DAYS[1]])
    assert set(rows["source_file"]) <= {
        f"{run.config.data}/dt={DAYS[1]}/{name}" for name in ("a.tsv", "b.tsv.gz", "d.tsv")
    }


def test_a_rerun_leaves_every_object_alone(spark: SparkSession, run: Run) -> None:
    before = lakes.objects(run.config.lake)
    assert f"{DAYS[0]}/_MANIFEST.json" in "".join(before)
    again = cases.run_build(spark, run.config, RUN_DATE)
    assert again.workflow.version == run.built.workflow.version
    assert lakes.objects(run.config.lake) == before


def test_an_object_that_is_replaced_is_read_again(spark: SparkSession, run: Run) -> None:
    """A validation day is not part of a fit, so only its tables and those of the run date may change."""
    day, lake = DAYS[1], Lake(run.config.lake)
    lines = cases.make_lines(day, 40, 99)
    name = f"{run.config.data}/dt={day}/a.tsv"
    before = lakes.manifests(run.config.lake)
    size = file_io.filesystem(name)[0].get_file_info(file_io.filesystem(name)[1]).size
    file_io.replace_text(name, "\n".join(line for line in lines if line) + "\n")
    assert file_io.filesystem(name)[0].get_file_info(file_io.filesystem(name)[1]).size != size
    cases.run_build(spark, run.config, RUN_DATE)
    changed = lakes.changed(before, lakes.manifests(run.config.lake))
    assert {name.rsplit("/dt=", 1)[1] for name in changed} == {day, RUN_DATE}
    assert not [name for name in changed if name.endswith(RUN_DATE) and name.startswith(("features", "quar"))]
    manifest = read_manifest(lake.features(run.built.workflow.version).partition(day))
    rows = lakes.read_rows(lake.features(run.built.workflow.version).partition(day))
    assert len(rows) == manifest.rows
    (member,) = read_dataset(lake, RUN_DATE).splits["validation"]
    assert member.digest == manifest.digest


@pytest.mark.parametrize("at", ["before the manifest", "within its upload", "after it"])
def test_a_killed_writer_leaves_one_whole_partition(object_store: ObjectStore, at: str) -> None:
    root = f"{object_store.root}/killed/{at.replace(' ', '_')}"
    assert lakes.publish_in_a_process(root, 1, None) == 0
    assert lakes.read_generation(root) == 1
    assert lakes.publish_in_a_process(root, 2, at) == -signal.SIGKILL
    assert lakes.read_generation(root) == (2 if at == "after it" else 1)
    assert lakes.publish_in_a_process(root, 3, None) == 0
    assert lakes.read_generation(root) == 3


def test_a_lost_data_file_is_noticed(object_store: ObjectStore) -> None:
    root = f"{object_store.root}/lost"
    assert lakes.publish_in_a_process(root, 1, None) == 0
    partition = lakes.partition_of(root)
    file_io.delete_file(partition.file(read_manifest(partition).files[0].path))
    with pytest.raises(FileNotFoundError):
        lakes.read_generation(root)


def test_wildcards_match_as_they_do_on_a_disk(object_store: ObjectStore, tmp_path: Path) -> None:
    root = f"{object_store.root}/wild"
    lakes.check_wildcards(tmp_path, root, lambda: lakes.upload(tmp_path, root))
    assert isinstance(file_io.filesystem(root)[0], fs.S3FileSystem)


def test_typed_rows_are_deleted_if_their_log_does_not_exist(run: Run) -> None:
    """The last test of a lake: the table is gone afterwards."""
    lake = Lake(run.config.lake)
    days = DAYS if run.config.workflow.engine == "sql" else []
    assert written_dates(lake.typed) == days
    delete_unneeded_days(run.config, lake, DAYS[0])
    assert written_dates(lake.typed) == days
    elsewhere = run.config.model_copy(update={"data": f"{run.config.data}-of-nobody"})
    delete_unneeded_days(elsewhere, lake, DAYS[0])
    assert written_dates(lake.typed) == []
    assert not any("typed" in path for path in lakes.objects(run.config.lake))
