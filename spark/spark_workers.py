"""Runs Python functions in the Python workers of a Spark session."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark.rows import spark_types
from spark.tasks import collect_results, run_tasks
from spark.workers import Workers

# Groups of 4 GiB of text are small enough, so Spark can divide a day among GPUs.
_TASKS_OF_GROUP = 64


class SparkWorkers(Workers):
    """The Python workers of a Spark session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def spark(self) -> SparkSession:
        """Returns the session."""
        return self._spark

    @property
    def parallelism(self) -> int:
        """Returns the number of tasks that Spark uses by default."""
        return self._spark.sparkContext.defaultParallelism

    def gpu_groups(self, tasks: int) -> list[range]:
        """Returns groups if the Spark profile gives each task a GPU."""
        amount = self._spark.sparkContext.getConf().get("spark.task.resource.gpu.amount", "0")
        if float(amount or 0) < 1:  # tasks have only a part of a GPU: several tasks would share one
            return []
        starts = range(0, tasks, _TASKS_OF_GROUP)
        return [range(first, min(first + _TASKS_OF_GROUP, tasks)) for first in starts]

    def run(self, tasks: int, run: Callable[[int], Iterator[pa.RecordBatch]], schema: pa.Schema) -> DataFrame:
        """Returns a lazy frame of the batches of all tasks."""
        return run_tasks(self._spark, tasks, run, spark_types(schema))

    def collect(self, tasks: int, run: Callable[[int], str]) -> list[str]:
        """Runs all tasks in one Spark job, and returns their texts in order."""
        return collect_results(self._spark, tasks, run)
