"""Functions in Spark tasks: conservation, attempts, errors, and imports before the fork."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.errors import DataError
from spark.tasks import collect_results, map_batches, run_tasks
from spark.worker_daemon import VARIABLE
from tests.processes import ROOT, environment

pytestmark = pytest.mark.processes

TASK_COUNTS = [0, 1, 2, 3, 7, 40]
SCHEMA = "task long, part long"


def _parts(index: int) -> Iterator[pa.RecordBatch]:
    """`index` batches of two rows: some tasks return no batch, some return several."""
    for part in range(index):
        yield pa.RecordBatch.from_pydict({"task": [index, index], "part": [2 * part, 2 * part + 1]})


@pytest.mark.parametrize("tasks", TASK_COUNTS)
def test_each_task_runs_once_in_a_partition_of_its_own(spark: SparkSession, tasks: int) -> None:
    rows = run_tasks(spark, tasks, _parts, SCHEMA).withColumn("partition", F.spark_partition_id()).collect()
    collected = sorted((row["task"], row["part"]) for row in rows)
    assert collected == [(task, part) for task in range(tasks) for part in range(2 * task)]
    assert all(row["partition"] == row["task"] for row in rows)


@pytest.mark.parametrize("tasks", TASK_COUNTS)
def test_results_are_in_the_order_of_the_tasks(spark: SparkSession, tasks: int) -> None:
    assert collect_results(spark, tasks, lambda index: f"result {index}") == [
        f"result {index}" for index in range(tasks)
    ]


def test_a_frame_of_tasks_is_lazy_and_every_evaluation_runs_them(spark: SparkSession, tmp_path: Path) -> None:
    """So a task must not rely on running once: its files need names of their own."""

    def run(index: int) -> Iterator[pa.RecordBatch]:
        attempt = len(list(tmp_path.glob(f"{index}-*")))
        (tmp_path / f"{index}-{attempt}").touch()
        yield pa.RecordBatch.from_pydict({"task": [index], "part": [0]})

    rows = run_tasks(spark, 3, run, SCHEMA)
    assert list(tmp_path.iterdir()) == []
    assert [rows.count(), rows.count()] == [3, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-0", "0-1", "1-0", "1-1", "2-0", "2-1"]


def test_a_failing_task_names_its_error(spark: SparkSession) -> None:
    def run(index: int) -> str:
        if index == 2:
            raise DataError(f"the file of task {index} is damaged", "deliver it again")
        return ""

    with pytest.raises(Exception, match=r"DataError: the file of task 2 is damaged[\s\S]*deliver it again"):
        collect_results(spark, 4, run)


RETRIES = """
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from spark.profile import read_properties
from spark.session import build_session
from spark.tasks import collect_results, run_tasks

folder = Path(sys.argv[1])
settings = read_properties(Path("conf/spark/local.conf"))
spark = build_session("retries", {**settings, "spark.master": "local[2,3]", "spark.local.dir": sys.argv[2]})


def write(index: int) -> str:
    attempt = len(list(folder.glob(f"{index}-*")))
    (folder / f"{index}-{attempt}").touch()
    if index % 2 and attempt < 2:
        raise OSError("the first two attempts fail")
    return f"{index}-{attempt}"


def interrupted(index: int) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"result": [index]})
    write(index + 10)  # fails behind the batch
    yield pa.RecordBatch.from_pydict({"result": [index]})


print("RESULTS", *collect_results(spark, 4, write))
print("BATCHES", *sorted(row["result"] for row in run_tasks(spark, 4, interrupted, "result long").collect()))
"""


def test_retried_tasks_return_the_result_of_one_attempt(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    command = [sys.executable, "-c", RETRIES, str(tmp_path), str(tmp_path_factory.mktemp("spark"))]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert "RESULTS 0-0 1-2 2-0 3-2\n" in done.stdout, done.stderr[-3000:]
    assert "BATCHES 0 0 1 1 2 2 3 3\n" in done.stdout, done.stderr[-3000:]
    assert len(list(tmp_path.iterdir())) == 2 * (2 + 2 * 3)


def _has_module(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"imported": ["colorsys" in sys.modules]})


def _first(rows: DataFrame) -> bool:
    return bool(rows.collect()[0]["imported"])


def test_imports_are_done_before_the_workers_are_forked(spark: SparkSession) -> None:
    """`colorsys` stands for a module that is slow to import: nothing else imports it."""
    one = spark.range(0, 1, 1, 1)
    requested = map_batches(one, _has_module, "imported boolean", ["colorsys", "pyarrow"])
    assert VARIABLE not in spark.sparkContext.environment
    others = map_batches(one, _has_module, "imported boolean")
    assert [_first(requested), _first(others)] == [True, False]

    def run(_: int) -> Iterator[pa.RecordBatch]:
        yield from _has_module([pa.RecordBatch.from_pydict({"id": [0]})])

    assert _first(run_tasks(spark, 1, run, "imported boolean", ["colorsys", "pyarrow"]))
    assert not _first(run_tasks(spark, 1, run, "imported boolean"))


def test_a_frame_that_spark_refuses_leaves_the_environment_unchanged(spark: SparkSession) -> None:
    before = dict(spark.sparkContext.environment)
    with pytest.raises(Exception, match="no_such_type"):
        map_batches(spark.range(1), _has_module, "imported no_such_type", ["colorsys"])
    assert spark.sparkContext.environment == before
