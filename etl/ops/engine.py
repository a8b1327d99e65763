"""Chooses the engine: Spark expressions (`sql`) or Arrow batches in Python workers (`arrow`)."""

from __future__ import annotations

from typing import Literal

from pyspark.sql import SparkSession

Engine = Literal["sql", "arrow"]


def choose_engine(
    spark: SparkSession, wanted: Literal["auto", "sql", "arrow"], in_memory: bool = True
) -> Engine:
    """Resolves `auto` to an engine.

    `auto` means sql if the cluster has the RAPIDS plugin, which runs it on the GPU, or if the tables do not
    fit in the memory of a worker. Otherwise it means arrow, which is faster on CPUs.
    """
    if wanted != "auto":
        return wanted
    on_gpu = "SQLPlugin" in (spark.conf.get("spark.plugins", "") or "")
    return "sql" if on_gpu or not in_memory else "arrow"
