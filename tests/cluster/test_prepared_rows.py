"""A shop's log on the cluster: Spark prepares the rows that tasks have stored, also if an executor is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark.workers import LocalWorkers
from storage.manifest import read_manifest
from storage.paths import LakePaths
from tests.cluster.chain import Lakes
from tests.cluster.node import Node
from tests.cluster.test_chain import disturbed
from tests.etl import cases
from tests.etl.prepare.test_prepared_passes import FIRST, _config, _rows, no_session
from tests.standalone import Cluster

pytestmark = pytest.mark.timeout(900)
TASKS = 20  # of far more: an executor is killed when so many were started


def test_features_are_those_of_one_machine_though_an_executor_is_killed(
    lakes: Lakes, node: Node, cluster: Cluster, tmp_path: Path
) -> None:
    """Histories, negatives, and tables of users and items. The lake is all that the executors share."""
    config = _config(tmp_path, "history, negatives and tables")
    alone = config.model_copy(update={"lake": str(tmp_path / "alone")})
    built = cases.run_build(LocalWorkers(2, no_session), alone, FIRST)
    command = (
        f"spark-submit --properties-file {lakes.profile} jobs/build_features.py "
        f"--config {tmp_path}/config.yaml --run-date {FIRST}"
    )
    ended = node.run(command, disturbed(cluster, TASKS, lambda: cluster.executors()[0].kill()))
    assert ended.exit_code == 0, ended.log[-4000:]
    assert "Lost executor" in ended.log, "it was over before anything was killed"
    compared = 0
    for dt in built.features:
        of_lakes = []
        for lake in (LakePaths(alone.lake), LakePaths(config.lake)):
            partitions = [
                lake.features(built.workflow.version).partition(dt),
                lake.prepared(config.name).partition(dt),
                lake.last_clicks.partition(dt),
            ]
            of_lakes.append([_rows(one, "row_id") for one in partitions])
            assert read_manifest(lake.quarantine.partition(dt)).rows > 0
        assert of_lakes[0] == of_lakes[1]
        compared += len(of_lakes[0][0])
    assert compared > 1000
    stored = [path for path in Path(config.lake).rglob("*-rows/*") if path.is_file()]
    assert stored == [], "stored rows are deleted"
