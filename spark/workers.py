"""Runs Python functions in parallel: in Spark's Python workers, or in processes of this machine.

Both kinds of workers give the same results. Clusters need Spark's workers. On one machine, local processes
(spark/local_workers.py) run the same functions without a JVM.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:  # so a process that starts no JVM does not import pyspark here
    from pyspark.sql import DataFrame, SparkSession


class Workers(ABC):
    """Runs functions in parallel, and returns the Spark session for work that needs frames."""

    @property
    @abstractmethod
    def spark(self) -> SparkSession:
        """Returns the Spark session. The first call may start a JVM, so use the session only for frames."""

    @property
    @abstractmethod
    def parallelism(self) -> int:
        """Returns the number of tasks that can run at the same time."""

    def gpu_groups(self, tasks: int) -> list[range]:
        """Divides tasks into groups. Each group is for one process that has a GPU of its own.

        The groups are in the order of the tasks. If no process has a GPU, there are no groups.
        """
        return []

    @abstractmethod
    def run(
        self, tasks: int, run: Callable[[int], Iterator[pa.RecordBatch]], schema: pa.Schema
    ) -> pa.Table | DataFrame:
        """Runs `run(index)` for each index below `tasks`, and returns the batches of all tasks.

        Args:
            tasks: number of tasks. With 0 tasks the result is empty.
            run: called once per task, in another process. The function is pickled. If it writes files, it
                must use new file names in each attempt, and return these names.
            schema: the schema of the batches.

        Returns:
            In Spark, a lazy frame (spark.tasks.run_tasks). In processes of this machine, a table with the
            rows in the order of the tasks, mapped from files.
        """

    @abstractmethod
    def collect(self, tasks: int, run: Callable[[int], str]) -> list[str]:
        """Runs `run(index)` for each index below `tasks`, and returns the texts in the order of the tasks."""
