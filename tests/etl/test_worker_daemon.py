"""Python workers are forked from a process that has imported, once and from compiled files, what they run."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from etl.worker_daemon import IMPORTED, prefer_compiled


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


def test_only_the_archive_of_the_installed_pyspark_is_left_out() -> None:
    site = str(Path("/env/lib/site-packages"))
    own, other = f"{site}/pyspark/python/lib/pyspark.zip", "/opt/spark/python/lib/pyspark.zip"
    rest = ["", "/jobs", f"{site}/pyspark/python/lib/py4j-0.10-src.zip", site]
    assert prefer_compiled([own, *rest, other]) == [*rest, other]
    # A Spark of the cluster's own brings its pyspark, and none is installed beside ours.
    assert prefer_compiled([own, ""]) == [own, ""]
