"""Fixtures every test may use. One Spark session serves the whole suite, or each of its workers (pytest -n)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from spark.session import build_session, read_profile
from tests.spark_settings import set_meanwhile
from tests.standalone import Cluster, standalone_cluster

ROOT = Path(__file__).parent.parent

# Thousands of small queries are run once each here, which is not worth compiling them. What users run, generated code, is run by all that
# starts processes of its own: nights, the chain on a cluster, Airflow's days, jobs that are killed, benchmarks; and by what asks for
# the fixture `compiling`.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}


class ByFile(LoadScopeScheduling):
    """A worker of the suite gets whole files; a folder with a conftest.py of its own whole, for its fixtures may last as long."""

    def _split_scope(self, nodeid: str) -> str:
        file = Path(nodeid.split("::", 1)[0])
        folders = [
            folder for folder in file.parents if folder.parts[1:] and (ROOT / folder / "conftest.py").exists()
        ]
        return str(folders[-1] if folders else file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    config.option.loadscopereorder = False  # the suite's own order, in which the longest comes first
    return ByFile(config, log)


# A marker and the fixtures that bring it; the markers are described in pyproject.toml. A file whose tests start such things
# themselves has a `pytestmark`.
MARKED_FIXTURES = {
    "spark": {"spark"},
    "servers": {"airflow_environment", "bucket", "database", "hdfs", "object_store"},
    "cluster": {"cluster", "node"},
}
SLOW_MARKERS = (*MARKED_FIXTURES, "processes")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Adds the markers that follow from the fixtures of each test."""
    for item in items:
        fixtures = {*getattr(item, "fixturenames", ())}
        for marker, names in MARKED_FIXTURES.items():
            if fixtures & names:
                item.add_marker(marker)


@pytest.fixture(autouse=True)
def no_unmarked_spark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unmarked test that starts a JVM fails, so that `make test-fast` stays fast."""

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError(f"{request.node.nodeid} starts Spark: use the fixture `spark` or a marker")

    if not any(request.node.get_closest_marker(marker) for marker in SLOW_MARKERS):
        monkeypatch.setattr("pyspark.context.launch_gateway", refuse)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2] with the settings of conf/spark/local.conf, warehouse and scratch in a temporary folder, and INTERPRETED."""
    scratch = tmp_path_factory.mktemp("spark")
    settings = read_profile(ROOT / "conf/spark/local.conf")
    settings |= {"spark.local.dir": str(scratch), "spark.sql.warehouse.dir": str(scratch / "warehouse")}
    settings |= INTERPRETED
    session = build_session("tests", settings)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def compiling(spark: SparkSession) -> Iterator[SparkSession]:
    """The session as users have it, which compiles its queries: for files whose logs are long enough."""
    with set_meanwhile(spark, _COMPILED):
        yield spark


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A standalone cluster of two workers with two cores each, for one file of tests: what they kill is nobody else's."""
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started
