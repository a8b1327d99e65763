"""Chooses the engine: Spark expressions (`sql`) or Arrow batches in Python workers (`arrow`)."""

from __future__ import annotations

from typing import Literal

from pyspark.sql import SparkSession

Engine = Literal["sql", "arrow"]


def choose_engine(
    spark: SparkSession, wanted: Literal["auto", "sql", "arrow"], in_memory: bool = True
) -> Engine:
    """Returns the engine `wanted`, or chooses an engine if `wanted` is `auto`.

    `auto` chooses `sql` if the cluster has the RAPIDS plugin, which runs Spark expressions on the GPU. It
    also chooses `sql` if the tables of the workflow are too large for a Python worker (`in_memory` is false).
    Otherwise it chooses `arrow`, which is faster on CPUs.
    """
    if wanted != "auto":
        return wanted
    on_gpu = "SQLPlugin" in (spark.conf.get("spark.plugins", "") or "")
    return "sql" if on_gpu or not in_memory else "arrow"
