"""Python workers that score are forked from a process that has imported torch: seconds of a core for each of them else."""

from __future__ import annotations

from contextlib import AbstractContextManager

from pyspark.sql import SparkSession

from spark.worker_imports import importing

# One list for all that scores, so that they share the process.
_IMPORTED = ("scoring.candidates.vectors", "scoring.ranking.recommender", "scoring.rows.task")


def scoring_workers(spark: SparkSession) -> AbstractContextManager[None]:
    """For what the tasks of a frame run; spark.worker_imports.importing."""
    return importing(spark, *_IMPORTED)
