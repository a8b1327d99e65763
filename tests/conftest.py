"""Fixtures every test may use. One Spark session serves the whole suite, or one worker of it (pytest -n)."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy.testing  # noqa: F401 - its first import runs `lscpu`, which would be counted for a test
import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from conf.process import ignore_imported, limit_spinning
from setup.changed_tests import EXTENDED_SECONDS, SECONDS
from spark.profile import read_properties
from spark.session import build_session
from tests.checked_device import register_checked_device
from tests.extended import beginnings
from tests.spark_settings import set_meanwhile
from tests.standalone import Cluster, standalone_cluster

limit_spinning()  # test files import torch before our packages
register_checked_device()


def _without_waiting(_: object) -> None:
    """Stands for os.fsync: no test ends the machine, so the content of files is never lost.

    Some tests write thousands of small files, and each would wait for the disk.
    """


os.fsync = _without_waiting

# Examples may take long to draw and to run if other processes use the cores. Each test has a time limit anyway.
# Each run draws other examples, so 60 of them per run suffice.
settings.register_profile(
    "nightrank", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("nightrank")

ROOT = Path(__file__).parent.parent

# The tests run thousands of small queries once each, so compiling them is not worth its time. Users run
# generated code. It is covered by the tests that start processes (runs of the chain, a cluster, Airflow,
# killed jobs, benchmarks) and by those that use the fixture `compiling`.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}


# Environment variable with the path of the list of test files that use Spark. A worker writes it, the scheduler reads it.
_SPARK_FILES = "NIGHTRANK_TESTS_WITH_SPARK"
_WITH_SPARK = "with Spark"  # how the units of such files end


class ByFile(LoadScopeScheduling):
    """Gives a worker of the suite whole files, and the whole of a folder that has its own conftest.py.

    Fixtures of such a folder may last as long as its tests. The first worker gets the files that use Spark, as
    long as there are any, and the other workers get the other files. So one JVM runs nearly all tests of Spark,
    and its classes are loaded and compiled once. The files of a folder that use Spark are a unit of their own.
    """

    @cached_property
    def _spark_files(self) -> frozenset[str]:
        return frozenset(Path(os.environ[_SPARK_FILES]).read_text().splitlines())

    def _split_scope(self, nodeid: str) -> str:
        name = nodeid.split("::", 1)[0]
        file = Path(name)
        folders = [
            folder for folder in file.parents if folder.parts[1:] and (ROOT / folder / "conftest.py").exists()
        ]
        unit = str(folders[-1] if folders else file)
        return f"{unit} {_WITH_SPARK}" if name in self._spark_files else unit

    def _assign_work_unit(self, node: WorkerController) -> None:
        wants_spark = node is self.nodes[0]
        unit = next((unit for unit in self.workqueue if unit.endswith(_WITH_SPARK) == wants_spark), None)
        if unit:
            self.workqueue.move_to_end(unit, last=False)
        super()._assign_work_unit(node)


def pytest_configure(config: pytest.Config) -> None:
    """Makes the file in which a worker of the suite names the test files that use Spark."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        return
    folder = tempfile.TemporaryDirectory()
    os.environ[_SPARK_FILES] = f"{folder.name}/files"
    config.add_cleanup(folder.cleanup)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    config.option.loadscopereorder = False  # the suite's own order, in which the longest comes first
    return ByFile(config, log)


# Marker -> the fixtures that bring it; pyproject.toml describes the markers. A file whose tests start such
# processes without a fixture has a `pytestmark`.
MARKED_FIXTURES = {
    "spark": {"spark"},
    "servers": {
        "airflow_environment",
        "azure",
        "bucket",
        "database",
        "google",
        "google_lake",
        "hdfs",
        "object_store",
        "raw_store",
        "valkey",
    },
    "cluster": {"cluster", "node"},
}
SLOW_MARKERS = (*MARKED_FIXTURES, "processes")
# Tests that run only if the command line asks for their marker, and why.
LEFT_OUT = {
    "image": "container images: not built, because that needs root and 15 minutes; `make image-test` builds them",
    "large": "tests that need gigabytes, many minutes or a compiler of Go: `make large-test` runs them",
}
# Audit events that Python raises when a process is started (docs.python.org/3/library/audit_events.html).
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}
# Variables that a job sets in its own process when it chooses a profile.
_OF_PROFILES = ("PYSPARK_SUBMIT_ARGS", "PYSPARK_PYTHON")
_unmarked_test: list[str] = []  # the running test, if it has none of SLOW_MARKERS


def _left_out(config: pytest.Config) -> list[str]:
    """The markers of LEFT_OUT for which the command line does not ask."""
    words = config.option.markexpr.split()
    asked = {word for before, word in zip(["", *words], words, strict=False) if before != "not"}
    return [marker for marker in LEFT_OUT if marker not in asked]


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Says why tests are left out, because nobody sees from the summary that they are."""
    return [LEFT_OUT[marker] for marker in _left_out(config)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Adds the markers that follow from the fixtures of each test, and leaves out those of LEFT_OUT."""
    for marker in _left_out(config):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker(marker)])
        items[:] = [item for item in items if not item.get_closest_marker(marker)]
    unused = _mark_extended(items)
    if unused and config.args == config.getini("testpaths") and not config.option.keyword:
        raise pytest.UsageError(f"tests/extended.py names tests that do not exist: {unused}")
    for item in items:
        fixtures = {*getattr(item, "fixturenames", ())}
        for marker, names in MARKED_FIXTURES.items():
            if fixtures & names:
                item.add_marker(marker)


def _mark_extended(items: Sequence[pytest.Item]) -> list[str]:
    """Marks the tests that only `make test-extended` runs. Returns the patterns that fit no test."""
    unused = beginnings()
    any_of_them = re.compile("|".join(regex.pattern for regex in unused.values()))
    fitting = [item for item in items if any_of_them.match(item.nodeid)]
    for pattern, regex in beginnings().items():
        for item in fitting:
            if regex.match(item.nodeid):
                item.add_marker("extended")
                unused.pop(pattern, None)
    return [*unused]


@pytest.hookimpl(tryfirst=True)  # before the worker reports its tests, whereupon they are scheduled
def pytest_collection_finish(session: pytest.Session) -> None:
    """Excludes what the files of tests have imported from searches for garbage.

    The first worker of the suite lists the test files that use Spark.
    """
    ignore_imported()
    if getattr(session.config, "workerinput", {}).get("workerid") == "gw0":
        files = {item.nodeid.split("::", 1)[0] for item in session.items if item.get_closest_marker("spark")}
        Path(os.environ[_SPARK_FILES]).write_text("\n".join(files))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Records how long each test file took, for `make test-changed`, unless only some of its tests ran.

    The seconds of its extended tests are another entry.
    """
    suffix = {"not extended": "", "extended": EXTENDED_SECONDS}.get(config.option.markexpr)
    stopped = config.option.maxfail and {"failed", "error"} & terminalreporter.stats.keys()
    only_some = config.option.keyword or config.option.deselect or stopped or suffix is None
    if only_some or any("::" in argument for argument in config.args):
        return
    seconds: dict[str, float] = defaultdict(float)
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid.split("::", 1)[0] + suffix] += report.duration
    record = ROOT / SECONDS
    known = json.loads(record.read_text()) if record.exists() else {}
    record.parent.mkdir(exist_ok=True)
    known |= {file: round(taken, 2) for file, taken in seconds.items()}
    record.write_text(json.dumps(dict(sorted(known.items())), indent=1))


def _refuse_processes(event: str, _: object) -> None:
    if _unmarked_test and event in STARTS:
        raise RuntimeError(f"{_unmarked_test[0]} starts a process: give it the marker `processes`")


sys.addaudithook(_refuse_processes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """An unmarked test that starts a process fails, also in a fixture, so `make test-fast` stays fast."""
    _unmarked_test.clear()
    if not any(item.get_closest_marker(marker) for marker in SLOW_MARKERS):
        _unmarked_test.append(item.nodeid)
    try:
        return (yield)
    finally:
        _unmarked_test.clear()


@pytest.fixture(autouse=True)
def no_unmarked_spark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unmarked test that starts a JVM fails, so that `make test-fast` stays fast."""

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError(f"{request.node.nodeid} starts Spark: use the fixture `spark` or a marker")

    if not any(request.node.get_closest_marker(marker) for marker in SLOW_MARKERS):
        monkeypatch.setattr("pyspark.context.launch_gateway", refuse)


@pytest.fixture(autouse=True)
def own_profile() -> Iterator[None]:
    """Takes back the Spark profile of a job that a test has run in this process (spark/profile.py)."""
    before = {name: os.environ.get(name) for name in _OF_PROFILES}
    yield
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.fixture(autouse=True)
def threads_of_jobs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of extended tests use as many threads of OpenMP as those of users (see the Makefile)."""
    if request.node.get_closest_marker("extended"):
        monkeypatch.delenv("OMP_THREAD_LIMIT", raising=False)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2] with conf/spark/local.conf and INTERPRETED; warehouse and scratch in a temporary folder."""
    scratch = tmp_path_factory.mktemp("spark")
    settings = read_properties(ROOT / "conf/spark/local.conf")
    settings |= {"spark.local.dir": str(scratch), "spark.sql.warehouse.dir": str(scratch / "warehouse")}
    settings["spark.ui.retainedStages"] = "100000"  # tests of monitoring compare sums over all stages
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
    """A standalone cluster of two workers with two cores each.

    Each file of tests has its own, because tests kill parts of it.
    """
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started
