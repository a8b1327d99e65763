"""Raw log and lake on s3a://, on an S3 server: build_features by every road, reruns, and killed writers."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from conf.types import Config
from etl.build import BuildResult
from etl.prepare.prepared_passes import delete_unneeded_days
from etl.workflow.feature_plan import plan_of
from jobs.erase_user import run as erase_user
from spark.choose_workers import SparkWorkers
from spark.workers import Workers
from storage import file_io, other_tools
from storage.dataset import read_dataset
from storage.manifest import read_manifest
from storage.paths import LakePaths
from storage.read_parquet import read_table
from storage.remove import written_dates
from storage.run_context import RunContext
from tests.etl import cases, oracle, raw_oracle
from tests.etl.lakes import lakes
from tests.etl.lakes.conftest import ObjectStore
from tests.etl.prepare.small_shop import no_session
from tests.etl.tasks_here import TasksHere

RUN_DATE = "2026-01-03"
DAYS = ["2026-01-01", "2026-01-02", "2026-01-03"]


@dataclass(frozen=True)
class Run:
    """One run on the object store by one road, and the results of the oracle."""

    workers: Workers
    config: Config
    built: BuildResult
    good: dict[str, pd.DataFrame]
    bad: dict[str, pd.DataFrame]
    fitted: oracle.Fitted


@pytest.fixture(
    scope="module",
    params=["without a jvm", *(pytest.param(engine, marks=pytest.mark.spark) for engine in ("arrow", "sql"))],
)
def run(object_store: ObjectStore, tmp_path_factory: pytest.TempPathFactory, request: Any) -> Run:
    """Tasks of this process, or workers of Spark with an engine."""
    folder = tmp_path_factory.mktemp("run")
    here = request.param == "without a jvm"
    workers = TasksHere(2, no_session) if here else SparkWorkers(request.getfixturevalue("spark"))
    root = f"{object_store.root}/{request.param.replace(' ', '_')}"
    engine = {"engine": "arrow" if here else request.param}
    roots = {"lake": f"{root}/lake", "data": f"{root}/raw", "workflow": engine}
    config = cases.write_config(folder, lakes.SMALL, roots)
    good, bad = {}, {}
    for seed, day in enumerate(DAYS):
        paths = cases.write_day(folder / f"raw/dt={day}", cases.make_lines(day, 100, seed))
        good[day], bad[day] = raw_oracle.parse_log(config, paths)
    lakes.upload(folder / "raw", f"{root}/raw")
    built = cases.run_build(workers, config, RUN_DATE)
    return Run(workers, config, built, good, bad, oracle.fit(config, good[DAYS[0]]))


def test_features_equal_the_oracle(run: Run) -> None:
    version = run.built.workflow.version
    for day in DAYS:
        rows = lakes.read_rows(LakePaths(run.config.lake).features(version).partition(day))
        expected = oracle.encode(run.config, run.fitted, run.good[day])
        cases.assert_features_equal(rows, expected, run.built.workflow.spec)


def test_quarantine_names_the_objects(run: Run) -> None:
    rows = lakes.read_rows(LakePaths(run.config.lake).quarantine.partition(DAYS[1]))
    assert len(rows) == len(run.bad[DAYS[1]])
    assert set(rows["source_file"]) <= {
        f"{run.config.data}/dt={DAYS[1]}/{name}" for name in ("a.tsv", "b.tsv.gz", "d.tsv")
    }


def test_a_rerun_leaves_every_object_alone(run: Run) -> None:
    before = lakes.objects(run.config.lake)
    assert f"{DAYS[0]}/_MANIFEST.json" in "".join(before)
    again = cases.run_build(run.workers, run.config, RUN_DATE)
    assert again.workflow.version == run.built.workflow.version
    assert lakes.objects(run.config.lake) == before


def test_an_object_that_is_replaced_is_read_again(run: Run) -> None:
    """A validation day is not part of a fit, so only its tables and those of the run date may change."""
    day, lake = DAYS[1], LakePaths(run.config.lake)
    lines = cases.make_lines(day, 40, 99)
    name = f"{run.config.data}/dt={day}/a.tsv"
    before = lakes.manifests(run.config.lake)
    size = file_io.filesystem(name)[0].get_file_info(file_io.filesystem(name)[1]).size
    file_io.replace_text(name, "\n".join(line for line in lines if line) + "\n")
    assert file_io.filesystem(name)[0].get_file_info(file_io.filesystem(name)[1]).size != size
    cases.run_build(run.workers, run.config, RUN_DATE)
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
    lakes.publish(root, 1)
    assert lakes.read_generation(root) == 1
    assert lakes.publish_in_a_process(root, 2, at) == -signal.SIGKILL
    assert lakes.read_generation(root) == (2 if at == "after it" else 1)
    lakes.publish(root, 3)
    assert lakes.read_generation(root) == 3


def test_a_lost_data_file_is_noticed(object_store: ObjectStore) -> None:
    root = f"{object_store.root}/lost"
    lakes.publish(root, 1)
    partition = lakes.partition_of(root)
    file_io.delete_file(partition.file(read_manifest(partition).files[0].path))
    with pytest.raises(FileNotFoundError):
        lakes.read_generation(root)


def test_wildcards_match_as_they_do_on_a_disk(object_store: ObjectStore, tmp_path: Path) -> None:
    root = f"{object_store.root}/wild"
    lakes.check_wildcards(tmp_path, root, lambda: lakes.upload(tmp_path, root))
    assert isinstance(file_io.filesystem(root)[0], fs.S3FileSystem)


def test_prepared_rows_are_deleted_if_their_log_does_not_exist(run: Run) -> None:
    """The last test of a lake: the table is gone afterwards."""
    lake = LakePaths(run.config.lake)
    prepared = lake.prepared(run.config.name)
    days = DAYS if run.config.workflow.engine == "sql" else []
    assert written_dates(prepared) == days
    delete_unneeded_days(plan_of(run.config), lake, DAYS[0])
    assert written_dates(prepared) == days
    elsewhere = run.config.model_copy(update={"data": f"{run.config.data}-of-nobody"})
    delete_unneeded_days(plan_of(elsewhere), lake, DAYS[0])
    assert written_dates(prepared) == []
    assert not any("prepared" in path for path in lakes.objects(run.config.lake))


def test_an_erased_user_is_in_no_object_and_the_delta_tables_have_the_new_files(run: Run) -> None:
    """The last test of this file, because it changes the lake."""
    config, user = run.config, "user 3"
    partition = LakePaths(config.lake).features(run.built.workflow.version).partition(DAYS[0])
    before = read_table(partition, read_manifest(partition)).to_pandas()
    erase_user(RunContext("erase_user", config, RUN_DATE), [user], dry_run=False)
    expected = before[before.user_key != user].reset_index(drop=True)
    assert len(expected) < len(before)
    pd.testing.assert_frame_equal(read_table(partition, read_manifest(partition)).to_pandas(), expected)
    files = file_io.filesystem(config.lake)[0]
    for info in file_io.list_files(config.lake, recursive=True):
        if info.path.endswith(".parquet"):
            with files.open_input_file(info.path) as source:
                rows = pq.read_table(source)
            texts = [column.to_pylist() for column in rows.columns if column.type == pa.string()]
            assert not any(user in column for column in texts), info.path
    profiles = LakePaths(config.lake).profiles(config.name).partition(DAYS[0])
    for shown in (partition, profiles):
        manifest = read_manifest(shown)
        table = shown.file(shown.data).rpartition("/")[0]
        paths = other_tools._paths(other_tools._load(table), DAYS[0])
        assert paths == {
            entry.path.rpartition(f"/{table.rpartition('_data/')[2]}/")[2] for entry in manifest.files
        }
    assert not paths
