"""Every job on a standalone cluster of two workers gives what it gives on one machine, also when parts of the cluster are killed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conf.lake import Lake
from conf.manifest import read_manifest
from tests.cluster.chain import CHAIN, RUN_DATE, Submitted, lists, run_in_process, submit, write_profile
from tests.cluster.equal import require_equal_features, require_equal_lists, require_equal_models
from tests.processes import wait_for
from tests.standalone import Cluster

pytestmark = pytest.mark.timeout(900)

_STARTED = "Executor: Running task"


@dataclass
class Lakes:
    """`alone` was made on local[2], `spread` on the cluster; `tasks` is how many tasks a job of the latter had."""

    alone: Path
    spread: Path
    profile: Path
    tasks: dict[str, int]


@pytest.fixture(scope="module")
def lakes(spark: SparkSession, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Lakes:
    folder = tmp_path_factory.mktemp("chain")
    profile = write_profile(folder / "cluster.conf", cluster, sys.executable)
    made = Lakes(folder / "alone", folder / "spread", profile, {})
    run_in_process(spark, made.alone)
    for job, run_date in CHAIN:
        known = cluster.applications()
        ended = submit(job, run_date, profile, made.spread)
        assert ended.exit_code == 0, ended.log[-3000:]
        for application in cluster.applications()[len(known) :]:
            made.tasks[job] = len(cluster.log_lines(_STARTED, application))
    return made


def test_every_worker_took_part(lakes: Lakes, cluster: Cluster) -> None:
    """An application of two executors, one a worker, ran the tasks."""
    for application in cluster.applications():
        executors = {folder for folder, _ in cluster.log_lines(_STARTED, application)}
        assert {Path(each).parent.parent.name for each in executors} == {"work-0", "work-1"}
    assert list(lakes.tasks) == [job for job, _ in CHAIN if job != "report"]


def test_features_are_those_of_one_machine(lakes: Lakes) -> None:
    require_equal_features(lakes.alone, lakes.spread)


def test_the_model_is_that_of_one_machine(lakes: Lakes) -> None:
    require_equal_models(lakes.alone, lakes.spread)


def test_lists_are_those_of_one_machine(lakes: Lakes) -> None:
    """Two trainings of two ranks add up in the same order, so that scores are closer than models have to be."""
    require_equal_lists(lists(lakes.alone), lists(lakes.spread))
    assert Path(Lake(str(lakes.spread)).report(RUN_DATE)).stat().st_size > 10_000


def kill_executor(cluster: Cluster) -> None:
    cluster.executors()[0].kill()


def kill_worker(cluster: Cluster) -> None:
    cluster.kill_worker(0)


def disturbed(cluster: Cluster, tasks: int, kill: Callable[[Cluster], None]) -> Callable[[], None]:
    """Kills once so many tasks of an application that is yet to come were started."""
    known = cluster.applications()

    def wait_and_kill() -> None:
        def look() -> bool:
            new = cluster.applications()[len(known) :]
            return bool(new) and len(cluster.log_lines(_STARTED, new[0])) >= tasks

        wait_for(f"{tasks} tasks", look, 120)
        kill(cluster)

    return wait_and_kill


def run_and_kill(
    job: str, lakes: Lakes, lake: Path, cluster: Cluster, kill: Callable[[Cluster], None]
) -> Submitted:
    """Runs a job whose tasks are half started when something is killed; the cluster is whole again afterwards."""
    before = len(cluster.workers)
    disturb = disturbed(cluster, lakes.tasks[job] // 2, kill)
    try:
        ended = submit(job, RUN_DATE, lakes.profile, lake, disturb)
    finally:
        if len(cluster.workers) < before:
            cluster.start_worker(0)
    assert ended.exit_code == 0, ended.log[-4000:]
    assert "Lost executor" in ended.log, "it was over before anything was killed"
    return ended


@pytest.mark.parametrize("kill", [kill_executor, kill_worker])
def test_features_survive(
    lakes: Lakes, cluster: Cluster, kill: Callable[[Cluster], None], tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    shutil.copytree(lakes.spread / "raw", lake / "raw")
    run_and_kill("build_features", lakes, lake, cluster, kill)
    require_equal_features(lakes.spread, lake)


@pytest.mark.parametrize("kill", [kill_executor, kill_worker])
def test_lists_survive(lakes: Lakes, cluster: Cluster, kill: Callable[[Cluster], None]) -> None:
    before = lists(lakes.spread)
    published = Lake(str(lakes.spread)).recommendations.partition(RUN_DATE)
    digest = read_manifest(published).digest
    shutil.rmtree(published.path)
    run_and_kill("score_daily", lakes, lakes.spread, cluster, kill)
    require_equal_lists(before, lists(lakes.spread))
    assert read_manifest(published).digest == digest
