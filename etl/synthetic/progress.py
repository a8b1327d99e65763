"""Logs how many tasks of a running Spark job have finished."""

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
    """Logs how many tasks of a Spark job have finished, while the body of a `with` statement runs this job.

    The log message is `<done> of <tasks> <unit>`.

    Args:
        spark: the session. The body must run exactly one job.
        tasks: number of the job's tasks.
        unit: the word for the tasks in the log message.
    """
    context = spark.sparkContext
    group = f"{unit} {uuid.uuid4().hex}"
    context.setJobGroup(group, f"{tasks} {unit}")
    ended = threading.Event()
    tracker = context.statusTracker()
    poller = threading.Thread(target=_poll, args=(tracker, group, tasks, unit, ended), daemon=True)
    poller.start()
    try:
        yield
    finally:
        ended.set()
        poller.join()


def _poll(tracker: StatusTracker, group: str, tasks: int, unit: str, ended: threading.Event) -> None:
    logged = 0
    while True:
        has_ended = ended.wait(_POLL_S)
        done = _completed_tasks(tracker, group)
        if done != logged:
            log.info("%d of %d %s", done, tasks, unit)
            logged = done
        if has_ended:
            return


def _completed_tasks(tracker: StatusTracker, group: str) -> int:
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage)
