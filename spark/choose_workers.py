"""Spark's Python workers, and the decision whether tasks run there or in processes of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from conf.process import available_memory
from spark.profile import launch_settings, local_cores
from spark.workers import LOCAL_FOLDERS, LocalWorkers, Workers
from storage.run_context import RunContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Number of tasks in a group, which runs on one GPU. They read about 4 GiB of text together. With groups of
# this size, Spark can divide a day among several GPUs.
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
        """Divides tasks into groups, each of which runs on one GPU.

        Returns an empty list unless the profile gives each of Spark's tasks a whole GPU.
        """
        amount = self._spark.sparkContext.getConf().get("spark.task.resource.gpu.amount", "0")
        if float(amount or 0) < 1:  # several tasks would share one GPU
            return []
        starts = range(0, tasks, _TASKS_OF_GROUP)
        return [range(first, min(first + _TASKS_OF_GROUP, tasks)) for first in starts]

    def run(self, tasks: int, run: Callable[[int], Iterator[pa.RecordBatch]], schema: pa.Schema) -> DataFrame:
        """Returns a lazy frame of the batches that all tasks yield."""
        from spark.rows import spark_types
        from spark.tasks import run_tasks  # this import also imports pyspark

        return run_tasks(self._spark, tasks, run, spark_types(schema))

    def collect(self, tasks: int, run: Callable[[int], str]) -> list[str]:
        """Runs all tasks in one Spark job, and returns the string that each task returned, in task order."""
        from spark.tasks import collect_results

        return collect_results(self._spark, tasks, run)


# The functions below decide whether tasks run in Spark's Python workers or in processes of this machine.

# The number of bytes that a stage of scoring or evaluation needs for each row if all rows are distinct
# clicks. A query keeps two strings and an entry of a hash table for each distinct (user, item) pair of a
# click. All other rows are read in batches and not kept.
_BYTES_PER_ROW = 100
_DEFAULT_MASTER = "local[*]"


def choose_workers(
    engine: Literal["auto", "sql", "arrow"], open_session: Callable[[], SparkSession]
) -> Workers:
    """Returns LocalWorkers if Spark would run tasks only on this machine, and otherwise SparkWorkers.

    Spark's workers are also used

    * if `engine` (`workflow.engine`) is not `auto`;
    * if spark-submit or a notebook has started this process, because the JVM is already running then;
    * if Spark has a plugin, such as the RAPIDS Accelerator.

    Args:
        engine: `workflow.engine` of the configuration.
        open_session: returns the Spark session. If the result is SparkWorkers, the function is called
            immediately, otherwise only if a stage needs frames.
    """
    settings = launch_settings(os.environ)
    processes = cores_without_jvm(settings)
    if engine != "auto" or processes is None:
        return SparkWorkers(open_session())
    folders = os.environ.get(LOCAL_FOLDERS) or settings.get("spark.local.dir")
    return LocalWorkers(processes, open_session, folders.split(",")[0] if folders else None)


def stay_in_process(context: RunContext, rows: int) -> None:
    """Decides whether a stage works in this process without a JVM, and sets `context.in_process`.

    The stage works in this process if the job has no session yet, `workflow.engine` is `auto`, and
    cores_without_jvm() returns a number. In addition, the rows must fit into half of the free memory of this
    machine or container.

    Args:
        context: the context of the stage, whose `in_process` is set.
        rows: the number of rows that the stage reads.
    """
    wanted = context.started_spark is None and context.config.workflow.engine == "auto"
    fits = rows * _BYTES_PER_ROW <= available_memory() // 2
    context.in_process = wanted and fits and cores_without_jvm() is not None


def workers_of(context: RunContext) -> Workers:
    """Returns the workers for a stage's tasks: Spark's, unless `stay_in_process` decided for this process."""
    if context.in_process:
        return choose_workers("auto", lambda: context.spark)

    return SparkWorkers(context.spark)


def cores_without_jvm(settings: Mapping[str, str] | None = None) -> int | None:
    """Returns the number of cores that Spark would use on this machine, if no JVM is needed.

    The result is None in three cases: spark-submit or a notebook has started a JVM for this process; Spark
    would run tasks on other machines; or Spark would have a plugin, such as the RAPIDS Accelerator.

    Args:
        settings: the result of `launch_settings`; None to compute it for this process.
    """
    known = launch_settings(os.environ) if settings is None else settings
    if "PYSPARK_GATEWAY_PORT" in os.environ or "spark.plugins" in known:
        return None
    return local_cores(known.get("spark.master", _DEFAULT_MASTER))
