"""Says on the log how many of a Spark job's tasks are done, while it runs."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import StatusTracker
from pyspark.sql import SparkSession

log = logging.getLogger("nightrank.generate")

_POLL_S = 0.5


@contextmanager
def task_progress(spark: SparkSession, tasks: int, unit: str) -> Iterator[None]:
    """Logs `n of tasks unit` whenever the one job that the block runs has finished more of its tasks."""
    context = spark.sparkContext
    group = f"{unit} {uuid.uuid4().hex}"
    context.setJobGroup(group, f"{tasks} {unit}")
    ended = threading.Event()
    tracker = context.statusTracker()
    watcher = threading.Thread(target=_watch, args=(tracker, group, tasks, unit, ended), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(tracker: StatusTracker, group: str, tasks: int, unit: str, ended: threading.Event) -> None:
    shown = 0
    while True:
        last_look = ended.wait(_POLL_S)
        done = _completed(tracker, group)
        if done != shown:
            log.info("%d of %d %s", done, tasks, unit)
            shown = done
        if last_look:
            return


def _completed(tracker: StatusTracker, group: str) -> int:
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage)
