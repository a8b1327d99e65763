"""Which engine does the work on rows: Spark expressions (`sql`) or Arrow batches in Python workers (`arrow`)."""

from __future__ import annotations

from typing import Literal

from pyspark.sql import SparkSession

Engine = Literal["sql", "arrow"]


def choose_engine(
    spark: SparkSession, wanted: Literal["auto", "sql", "arrow"], in_memory: bool = True
) -> Engine:
    """`auto` takes sql on a cluster with the RAPIDS plugin, which runs it on the GPU, and for what a worker's memory
    cannot hold; otherwise arrow, which is faster on CPUs.
    """
    if wanted != "auto":
        return wanted
    on_gpu = "SQLPlugin" in (spark.conf.get("spark.plugins", "") or "")
    return "sql" if on_gpu or not in_memory else "arrow"
