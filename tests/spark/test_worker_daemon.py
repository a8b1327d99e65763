"""Python workers are forked from a process that has imported, once and from compiled files, what they run."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark.worker_daemon import IMPORTED, without_archives

ROOT = Path(__file__).resolve().parents[2]


def test_workers_start_with_their_imports_frozen(spark: SparkSession) -> None:
    wanted = IMPORTED

    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc

        import pyspark

        for _ in batches:
            missing = ",".join(name for name in wanted if name not in sys.modules)
            yield pa.RecordBatch.from_arrays(
                [pa.array([gc.get_freeze_count()]), pa.array([missing]), pa.array([pyspark.__file__])],
                ["frozen", "missing", "pyspark"],
            )

    [row] = spark.range(0, 1, 1, 1).mapInArrow(look, "frozen long, missing string, pyspark string").collect()
    assert row["frozen"] > 10_000
    assert row["missing"] == ""
    assert ".zip" not in row["pyspark"]


def test_no_task_reads_the_contents_of_sparks_archives_again(spark: SparkSession) -> None:
    """Importers that a worker invalidates before every task, and imports of tasks after that."""

    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib.util

        for _ in batches:
            archives = [
                entry
                for entry in (*sys.path, *sys.path_importer_cache)
                if "/pyspark/" in entry and entry.endswith((".zip", ".jar"))
            ]
            spec = importlib.util.find_spec("py4j.java_gateway")
            origin = spec.origin if spec else None
            yield pa.RecordBatch.from_arrays(
                [pa.array([",".join(archives)]), pa.array([origin])], ["archives", "origin"]
            )

    [row] = spark.range(0, 1, 1, 1).mapInArrow(look, "archives string, origin string").collect()
    assert row["archives"] == ""
    assert row["origin"].endswith("site-packages/py4j/java_gateway.py")


def test_only_the_archives_of_the_installed_pyspark_are_left_out(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    (site / "py4j").mkdir(parents=True)
    archives = [
        f"{site}/pyspark/{name}"
        for name in ("python/lib/pyspark.zip", "python/lib/py4j-0.10-src.zip", "jars/spark-core.jar")
    ]
    rest = ["", "/jobs", "/opt/spark/python/lib/pyspark.zip", "/brought/more.zip", str(site)]
    assert without_archives([*archives, *rest]) == rest
    # A Spark of the cluster's own brings its pyspark, and none is installed beside ours.
    assert without_archives([*archives, ""]) == [*archives, ""]
    # An environment behind a link, which Spark has followed.
    (tmp_path / "linked").symlink_to(site)
    rest[-1] = f"{tmp_path}/linked"
    assert without_archives([*archives, *rest]) == rest
    (site / "py4j").rmdir()
    assert without_archives([*archives, *rest]) == [*archives, *rest]


@pytest.mark.processes
@pytest.mark.parametrize("daemon, quiet", [("spark.worker_daemon", True), ("pyspark.daemon", False)])
def test_a_connection_that_spark_closes_prints_no_stack(daemon: str, quiet: bool) -> None:
    """Spark closes the connections of the other tasks of a stage when a task fails."""
    environment = {**os.environ, "PYTHON_WORKER_FACTORY_SECRET": "secret"}
    with subprocess.Popen(
        [sys.executable, "-m", daemon],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=environment,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        (port,) = struct.unpack("!i", process.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port)) as connection:
            (pid,) = struct.unpack("!i", connection.recv(4, socket.MSG_WAITALL))
            worker = psutil.Process(pid)
        worker.wait(timeout=60)  # it prints before it ends
        _, errors = process.communicate(timeout=60)  # closes standard input, which ends the daemon
    assert (b"Traceback" not in errors) == quiet, errors.decode()
