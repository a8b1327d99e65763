"""Reads the work that Spark did for a job: stages and executors, from the status store of the session."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession

_MOST_STAGES = 200
_DRAIN_MS = 2_000


@dataclass(frozen=True)
class Work:
    """The work of one stage or of all stages: sums over the tasks.

    Attributes:
        tasks, failed_tasks: number of tasks, and number of failed tasks.
        task_s: seconds that the tasks ran.
        cpu_s: seconds of CPU time in the JVM.
        gc_s: seconds of garbage collection.
        input_bytes, input_rows: bytes and rows that Spark itself read from storage. What Python workers read
            is not included.
        output_bytes, output_rows: bytes and rows that Spark itself wrote to storage. What Python workers
            wrote is not included.
        shuffle_read_bytes, shuffle_write_bytes: bytes that were read from shuffles and written to shuffles.
        spilled_bytes: bytes that were written to disk because memory was short.
    """

    tasks: int = 0
    failed_tasks: int = 0
    task_s: float = 0.0
    cpu_s: float = 0.0
    gc_s: float = 0.0
    input_bytes: int = 0
    input_rows: int = 0
    output_bytes: int = 0
    output_rows: int = 0
    shuffle_read_bytes: int = 0
    shuffle_write_bytes: int = 0
    spilled_bytes: int = 0

    def __add__(self, other: Work) -> Work:
        theirs = asdict(other)
        return Work(**{name: round(value + theirs[name], 3) for name, value in asdict(self).items()})


@dataclass(frozen=True)
class SparkWork:
    """The work of one job in a Spark session. Several jobs may share a session, one after the other.

    Attributes:
        application_id: Spark's id of the session.
        executors: number of executors that Spark still lists. The driver counts as an executor if it runs
            tasks itself.
        cores: number of cores of these executors.
        core_s: number of cores times lifetime in seconds during the job, added over the executors and the
            driver.
        total: the sums over the tasks of all stages.
        stages: the stages with the largest task_s, as flat dictionaries, in the order of the stage ids.
        stages_left_out: number of stages that are not in `stages`.
    """

    application_id: str
    executors: int
    cores: int
    core_s: float
    total: Work
    stages: tuple[Mapping[str, Any], ...]
    stages_left_out: int

    def summary(self) -> dict[str, Any]:
        """Returns all attributes except `stages`, in one flat dictionary."""
        return {
            "application_id": self.application_id,
            "executors": self.executors,
            "cores": self.cores,
            "core_s": self.core_s,
            **asdict(self.total),
            "stages_left_out": self.stages_left_out,
        }


def read_spark_work(spark: SparkSession, since_s: float, now_s: float) -> SparkWork:
    """Reads the work of a running Spark session from `since_s` to `now_s` (seconds since 1970).

    Stages that were submitted before `since_s` are those of earlier jobs, and do not count.

    Raises:
        Exception: any error of Spark or its gateway; for example, the session may have been stopped.
    """
    context = spark.sparkContext
    gateway: Any = context._gateway
    scala: Any = context._jsc.sc()
    scala.listenerBus().waitUntilEmpty(_DRAIN_MS)
    store = scala.statusStore()
    nothing = gateway.new_array(gateway.jvm.double, 0)
    stage_list = store.stageList(None, False, False, nothing, gateway.jvm.java.util.ArrayList())
    executors = store.executorList(False)
    # The JVM serializes both as JSON, as its REST interface does. So one call is enough for any number of
    # stages.
    mapper = gateway.jvm.org.apache.spark.status.api.v1.JacksonMessageWriter().mapper()
    stages = json.loads(mapper.writeValueAsString(stage_list))
    began_s, conf = context._jsc.startTime() / 1000, context.getConf()
    local = scala.isLocal()
    driver_cores = 0 if local else int(conf.get("spark.driver.cores", "1"))
    held = driver_cores * max(0.0, now_s - max(began_s, since_s))
    known = json.loads(mapper.writeValueAsString(executors))
    return spark_work(context.applicationId, stages, known, held, since_s, now_s)


def spark_work(
    application_id: str,
    stages: list[Mapping[str, Any]],
    executors: list[Mapping[str, Any]],
    driver_core_s: float,
    since_s: float,
    now_s: float,
) -> SparkWork:
    """Adds up the work of the stages, and the core seconds of the executors. Skipped stages do not count.

    Args:
        application_id: Spark's id of the session.
        stages, executors: dictionaries in the form of Spark's REST interface.
        driver_core_s: core seconds of the driver.
        since_s: start of the job, in seconds since 1970. Stages that were submitted earlier do not count.
        now_s: the current time, in seconds since 1970.
    """
    ran = [stage for stage in stages if _ran_since(stage, since_s)]
    works = [_work(stage) for stage in ran]
    rows = [_stage_row(stage, work) for stage, work in zip(ran, works, strict=True)]
    longest = sorted(rows, key=lambda row: (-row["task_s"], row["stage_id"], row["attempt"]))[:_MOST_STAGES]
    workers = [executor for executor in executors if executor["totalCores"] > 0]
    core_s = driver_core_s + sum(
        worker["totalCores"] * _lifetime_s(worker, since_s, now_s) for worker in workers
    )
    return SparkWork(
        application_id,
        len(workers),
        sum(int(worker["totalCores"]) for worker in workers),
        round(core_s, 2),
        sum(works, Work()),
        tuple(sorted(longest, key=lambda row: (row["stage_id"], row["attempt"]))),
        len(rows) - len(longest),
    )


def _ran_since(stage: Mapping[str, Any], since_s: float) -> bool:
    """Returns whether a stage ran, and was submitted at `since_s` or later (Spark rounds to milliseconds)."""
    if stage["status"] in ("SKIPPED", "PENDING"):
        return False
    submitted = _seconds(stage.get("submissionTime"))
    return submitted is None or submitted >= since_s - 1e-3


def _work(stage: Mapping[str, Any]) -> Work:
    """Returns the work of one stage, in seconds and bytes."""
    return Work(
        tasks=stage["numCompleteTasks"] + stage["numFailedTasks"] + stage["numKilledTasks"],
        failed_tasks=stage["numFailedTasks"],
        task_s=stage["executorRunTime"] / 1e3,
        cpu_s=round(stage["executorCpuTime"] / 1e9, 3),
        gc_s=stage["jvmGcTime"] / 1e3,
        input_bytes=stage["inputBytes"],
        input_rows=stage["inputRecords"],
        output_bytes=stage["outputBytes"],
        output_rows=stage["outputRecords"],
        shuffle_read_bytes=stage["shuffleReadBytes"],
        shuffle_write_bytes=stage["shuffleWriteBytes"],
        spilled_bytes=stage["diskBytesSpilled"],
    )


def _stage_row(stage: Mapping[str, Any], work: Work) -> dict[str, Any]:
    """Returns the work of one stage as a flat dictionary."""
    began, ended = (_seconds(stage.get(name)) for name in ("submissionTime", "completionTime"))
    return {
        "stage_id": stage["stageId"],
        "attempt": stage["attemptId"],
        "name": stage["name"],
        "status": stage["status"],
        "seconds": round(ended - began, 3) if began is not None and ended is not None else None,
        **asdict(work),
    }


def _lifetime_s(executor: Mapping[str, Any], since_s: float, now_s: float) -> float:
    """Returns the seconds between `since_s` and `now_s` in which an executor existed."""
    began, ended = _seconds(executor.get("addTime")), _seconds(executor.get("removeTime"))
    if began is None:
        return 0.0
    return max(0.0, (now_s if ended is None else ended) - max(began, since_s))


def _seconds(time: Any) -> float | None:
    """Converts a time of Spark's REST interface to seconds since 1970.

    An example of such a time is 2026-01-08T03:00:00.000GMT.
    """
    if time is None:
        return None
    if isinstance(time, int | float):
        return time / 1000
    return datetime.fromisoformat(str(time).replace("GMT", "+00:00")).timestamp()
