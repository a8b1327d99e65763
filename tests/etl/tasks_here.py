"""Workers whose tasks run in this process, so that a small build needs no pool of processes."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from unittest.mock import patch

from pyspark.sql import SparkSession

from spark.workers import LOCAL_FOLDERS, LocalWorkers


class TasksHere(LocalWorkers):
    """Runs the tasks one after the other. As processes of a machine do, it gets each function pickled.

    tests/etl/text/test_two_passes.py and tests/e2e have processes.
    """

    def __init__(
        self, processes: int, open_session: Callable[[], SparkSession], folder: str | None = None
    ) -> None:
        with patch("spark.workers.start_server"):
            super().__init__(processes, open_session, folder)

    def _map(self, tasks: int, function: Callable[[int], str]) -> list[str]:
        copied = pickle.loads(pickle.dumps(function))
        with patch.dict(os.environ, {LOCAL_FOLDERS: str(self.folder)}):
            return [copied(index) for index in range(tasks)]
