"""The choice of the engine: Spark expressions (`sql`) or Arrow batches in Python workers (`arrow`)."""

from __future__ import annotations

from typing import Literal

from pyspark.sql import SparkSession

Engine = Literal["sql", "arrow"]


def choose_engine(
    spark: SparkSession, wanted: Literal["auto", "sql", "arrow"], in_memory: bool = True
) -> Engine:
    """Resolves `auto` to an engine.

    It is sql on a cluster with the RAPIDS plugin, which runs it on the GPU, and for data that does not fit
    the memory of a worker. Otherwise it is arrow, which is faster on CPUs.
    """
    if wanted != "auto":
        return wanted
    on_gpu = "SQLPlugin" in (spark.conf.get("spark.plugins", "") or "")
    return "sql" if on_gpu or not in_memory else "arrow"
