"""One unpacked archive, one cluster of its pyspark and one chain on it for the folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.cluster.chain import CHAIN, STARTED, Lakes, run_in_process, write_profile
from tests.cluster.node import Node, unpacked_archive
from tests.standalone import Cluster, standalone_cluster


@pytest.fixture(scope="package")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with unpacked_archive(tmp_path_factory.mktemp("node")) as node:
        yield node


@pytest.fixture(scope="package")
def cluster(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers of two cores, started from the archive's pyspark without settings of package paths.

    Only applications that know the secret may use it, and what they send is encrypted.
    """
    folder, spark_class = tmp_path_factory.mktemp("cluster"), node.folder / "environment/bin/spark-class"
    variables = {**node.variables, "PYSPARK_PYTHON": str(node.python)}
    secret = "of-the-cluster-of-this-test"
    with standalone_cluster(folder, spark_class=spark_class, variables=variables, secret=secret) as started:
        yield started


@pytest.fixture(scope="package")
def alone(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lake of a chain in this process."""
    lake = tmp_path_factory.mktemp("alone") / "lake"
    run_in_process(spark, lake)
    return lake


@pytest.fixture(scope="package")
def lakes(alone: Path, node: Node, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Lakes:
    """Two lakes of one chain. Executors use their node's environment; the training brings its own."""
    folder = tmp_path_factory.mktemp("chain")
    driver = {"spark.pyspark.driver.python": str(node.python)}
    profile = write_profile(folder / "unpacked.conf", cluster, str(node.python), root=node.folder)
    brought = write_profile(folder / "brought.conf", cluster, "./environment/bin/python", driver, node.folder)
    archives = ("--archives", f"{node.thin_environment(folder)}#environment")
    lakes = Lakes(alone, folder / "spread", profile, {})
    for job, run_date in CHAIN:
        known = cluster.applications()
        training = job == "train_model"
        how, more = (brought, archives) if training else (profile, ())
        ended = node.submit(job, run_date, how, lakes.spread, *more)
        assert ended.exit_code == 0, ended.log[-3000:]
        for application in cluster.applications()[len(known) :]:
            lakes.tasks[job] = len(cluster.log_lines(STARTED, application))
            lakes.training = application if training else lakes.training
    return lakes
