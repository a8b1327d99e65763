"""Every job from the archive of `make dist` on a standalone cluster of two workers.

The results equal those of the checkout on one machine, also if parts of the cluster are killed. The archive
is unpacked in a separate folder, with Java and Python.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from setup.install import ROOT
from setup.jars import digest
from setup.sbom import FILE_NAME
from spark.profile import read_properties
from storage.manifest import read_manifest
from storage.paths import LakePaths
from tests.cluster.chain import CHAIN, RUN_DATE, STARTED, Lakes, lists
from tests.cluster.equal import require_equal_features, require_equal_lists, require_equal_models
from tests.cluster.node import Node
from tests.processes import wait_for
from tests.standalone import Cluster

pytestmark = pytest.mark.timeout(900)


# Stages of these have several tasks at once. Where one task follows another, any executor may take them all.
PARALLEL = {"generate_clicks", "build_features", "train_model", "score_daily"}


def test_every_worker_took_part(lakes: Lakes, cluster: Cluster) -> None:
    """Every application had two executors, one a worker, and both ran tasks wherever two could run."""
    assert list(lakes.tasks) == [job for job, _ in CHAIN if job != "report"]
    # The applications of jobs that other tests kill come later.
    assert len(cluster.applications()) >= len(lakes.tasks)
    for job, application in zip(lakes.tasks, cluster.applications(), strict=False):
        started = cluster.folder.glob(f"work-*/{application}/*")
        assert sorted(path.parent.parent.name for path in started) == ["work-0", "work-1"]
        ran = {Path(folder).parent.parent.name for folder, _ in cluster.log_lines(STARTED, application)}
        assert ran == {"work-0", "work-1"} or (job not in PARALLEL and ran)


def test_messages_are_encrypted_as_the_pages_say(cluster: Cluster) -> None:
    assert cluster.security["spark.network.crypto.cipher"] == "AES/GCM/NoPadding"
    profile = read_properties(ROOT / "conf/spark/on-standalone.conf")
    assert profile["spark.network.crypto.cipher"] == cluster.security["spark.network.crypto.cipher"]


def test_the_archive_lists_what_it_contains(node: Node) -> None:
    document = json.loads((node.folder / FILE_NAME).read_text())
    environment = node.folder / "environment"
    (jars,) = environment.glob("lib/python3.*/site-packages/pyspark/jars")
    listed = {
        entry["hashes"][0]["content"]: entry["name"] for entry in document["components"] if "hashes" in entry
    }
    unpacked = [*jars.glob("*.jar"), *environment.glob("lib/nightrank/*.so")]
    assert {digest(path) for path in unpacked} <= listed.keys()
    assert len(unpacked) > 200


def test_features_are_those_of_one_machine(lakes: Lakes) -> None:
    require_equal_features(lakes.alone, lakes.spread)


def test_the_model_is_that_of_one_machine(lakes: Lakes) -> None:
    require_equal_models(lakes.alone, lakes.spread)


def test_lists_are_those_of_one_machine(lakes: Lakes) -> None:
    """Two trainings of two ranks add in the same order, so scores are closer than models have to be."""
    require_equal_lists(lists(lakes.alone), lists(lakes.spread))
    assert Path(LakePaths(str(lakes.spread)).report(RUN_DATE)).stat().st_size > 10_000


def test_the_training_ran_the_environment_that_the_application_brought(
    lakes: Lakes, cluster: Cluster
) -> None:
    lines = [line for _, line in cluster.log_lines(" of 2 on ", lakes.training)]
    executors = list(cluster.folder.glob(f"work-*/{lakes.training}/*"))
    assert len(lines) == len(executors) == 2
    for executor in executors:
        assert sum(f" in {executor}/environment, " in line for line in lines) == 1


def disturbed(cluster: Cluster, tasks: int, kill: Callable[[], None]) -> Callable[[], None]:
    """Kills once so many tasks of an application that is yet to come were started."""
    known = cluster.applications()

    def wait_and_kill() -> None:
        def look() -> bool:
            new = cluster.applications()[len(known) :]
            return bool(new) and len(cluster.log_lines(STARTED, new[0])) >= tasks

        wait_for(f"{tasks} tasks", look, 120)
        kill()

    return wait_and_kill


def run_and_kill(
    job: str, lakes: Lakes, lake: Path, node: Node, cluster: Cluster, kill: Callable[[], None]
) -> None:
    """Runs a job whose tasks are half started when something is killed."""
    disturb = disturbed(cluster, lakes.tasks[job] // 2, kill)
    ended = node.submit(job, RUN_DATE, lakes.profile, lake, disturb=disturb)
    assert ended.exit_code == 0, ended.log[-4000:]
    assert "Lost executor" in ended.log, "it was over before anything was killed"


def test_features_survive_an_executor(lakes: Lakes, node: Node, cluster: Cluster, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    shutil.copytree(lakes.spread / "raw", lake / "raw")
    run_and_kill("build_features", lakes, lake, node, cluster, lambda: cluster.executors()[0].kill())
    require_equal_features(lakes.spread, lake)


def test_lists_survive_a_worker_and_its_executor(lakes: Lakes, node: Node, cluster: Cluster) -> None:
    """tests/airflow kill an executor of this job."""
    before = lists(lakes.spread)
    published = LakePaths(str(lakes.spread)).recommendations.partition(RUN_DATE)
    digest = read_manifest(published).digest
    shutil.rmtree(published.path)
    run_and_kill("score_daily", lakes, lakes.spread, node, cluster, lambda: cluster.kill_worker(0))
    require_equal_lists(before, lists(lakes.spread))
    assert read_manifest(published).digest == digest
