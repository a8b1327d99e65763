"""The work of Spark for a job: figures of real stages, and core seconds of executors."""

from __future__ import annotations

import time
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from reporting.monitoring import run_observer
from reporting.monitoring.run_observer import SparkWork, Work, read_spark_work, spark_work


@pytest.fixture
def all_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session of the tests has run more and longer stages than a job's record keeps."""
    monkeypatch.setattr(run_observer, "_MOST_STAGES", 100_000)


def _since(before: SparkWork, after: SparkWork) -> list[Any]:
    known = {(row["stage_id"], row["attempt"]) for row in before.stages}
    return [row for row in after.stages if (row["stage_id"], row["attempt"]) not in known]


def _newest(work: SparkWork) -> int:
    return max((row["stage_id"] for row in work.stages), default=-1)


@pytest.mark.usefixtures("all_stages")
def test_stages_of_a_shuffle_are_counted_as_they_ran(spark: SparkSession, tmp_path: Any) -> None:
    spark.range(1000, numPartitions=4).write.parquet(str(tmp_path / "in"))
    before = read_spark_work(spark, 0.0, time.time())
    rows = spark.read.parquet(str(tmp_path / "in")).repartition(3)
    rows.write.parquet(str(tmp_path / "out"))
    after = read_spark_work(spark, 0.0, time.time())
    new_rows = [row for row in _since(before, after) if row["stage_id"] > _newest(before)]
    done = [
        row for row in new_rows if row["status"] == "COMPLETE" and (row["input_rows"] or row["output_rows"])
    ]
    reading, writing = done
    assert (reading["input_rows"], writing["output_rows"]) == (1000, 1000)
    assert writing["tasks"] == 3
    assert reading["shuffle_write_bytes"] == writing["shuffle_read_bytes"] > 0
    assert writing["output_bytes"] > 0
    assert all(row["failed_tasks"] == 0 and row["task_s"] > 0 and row["seconds"] > 0 for row in done)
    assert after.total.output_rows - before.total.output_rows == 1000
    assert after.total.tasks - before.total.tasks == sum(row["tasks"] for row in new_rows)


@pytest.mark.usefixtures("all_stages")
def test_tasks_that_fail_are_counted(spark: SparkSession) -> None:
    before = read_spark_work(spark, 0.0, time.time())
    with pytest.raises(Py4JJavaError):
        spark.sparkContext.parallelize([1, 0], 2).map(lambda number: 1 // number).collect()
    after = read_spark_work(spark, 0.0, time.time())
    assert after.total.failed_tasks - before.total.failed_tasks == 1
    assert _since(before, after)[-1]["status"] == "FAILED"


def test_cores_of_a_local_session_count_from_its_beginning(spark: SparkSession) -> None:
    now = time.time()
    first, later = (read_spark_work(spark, 0.0, moment) for moment in (now, now + 100))
    assert (first.executors, first.cores) == (1, 2)
    assert later.core_s - first.core_s == pytest.approx(200, abs=0.1)
    assert first.application_id == spark.sparkContext.applicationId


def test_reading_costs_the_same_calls_to_the_jvm_however_many_stages_there_are(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls and not seconds are counted: how long a call takes depends on what else the machine does."""
    gateway: Any = spark.sparkContext._gateway
    client = gateway._gateway_client
    send, sent = client.send_command, []

    def count(command: str, *args: Any, **options: Any) -> Any:
        # Py4J's garbage collection sends a command for each proxy that Python dropped, at any time.
        if not command.startswith("m\n"):
            sent.append(command)
        return send(command, *args, **options)

    monkeypatch.setattr(client, "send_command", count)

    def calls_of_a_reading() -> int:
        sent.clear()
        read_spark_work(spark, 0.0, time.time())
        return len(sent)

    calls_of_a_reading()
    before = calls_of_a_reading()
    for _ in range(8):
        spark.sparkContext.parallelize(range(4), 2).count()
    assert calls_of_a_reading() == before


STAGE = {
    "status": "COMPLETE",
    "stageId": 0,
    "attemptId": 0,
    "name": "collect at x.py:1",
    "numCompleteTasks": 3,
    "numFailedTasks": 1,
    "numKilledTasks": 0,
    "submissionTime": "2026-01-09T03:00:00.000GMT",
    "completionTime": "2026-01-09T03:00:02.500GMT",
    "executorRunTime": 4000,
    "executorCpuTime": 1_500_000_000,
    "jvmGcTime": 250,
    "inputBytes": 10,
    "inputRecords": 2,
    "outputBytes": 20,
    "outputRecords": 4,
    "shuffleReadBytes": 30,
    "shuffleWriteBytes": 40,
    "diskBytesSpilled": 50,
}


def test_executors_that_came_and_went_count_for_their_lives() -> None:
    executors = [
        {"totalCores": 0, "addTime": "2026-01-09T03:00:00.000GMT"},  # the driver of a cluster runs no task
        {
            "totalCores": 4,
            "addTime": "2026-01-09T03:00:10.000GMT",
            "removeTime": "2026-01-09T03:00:20.000GMT",
        },
        {"totalCores": 8, "addTime": "2026-01-09T03:00:30.000GMT"},
    ]
    now = 1767927640.0  # 2026-01-09T03:00:40Z
    work = spark_work("app", [STAGE], executors, 40.0, 0.0, now)
    assert work.core_s == 40 + 4 * 10 + 8 * 10
    assert (work.executors, work.cores) == (2, 12)
    assert work.total == Work(4, 1, 4.0, 1.5, 0.25, 10, 2, 20, 4, 30, 40, 50)
    assert work.stages[0]["seconds"] == 2.5


def test_work_of_earlier_jobs_in_the_same_session_does_not_count() -> None:
    """The executor existed before the job; the first stage was one of an earlier job."""
    executors = [{"totalCores": 2, "addTime": "2026-01-09T03:00:00.000GMT"}]
    stages = [
        {**STAGE, "stageId": number, "submissionTime": f"2026-01-09T03:00:{second:02}.000GMT"}
        for number, second in enumerate((5, 30, 32))
    ]
    began, now = 1767927630.0005, 1767927640.0  # Spark rounds times down to milliseconds
    work = spark_work("app", stages, executors, 0.0, began, now)
    assert work.core_s == pytest.approx(2 * 10, abs=0.01)
    assert [row["stage_id"] for row in work.stages] == [1, 2]
    assert work.total.tasks == 8


def test_skipped_stages_are_left_out_and_of_many_the_longest_kept() -> None:
    stages = [{**STAGE, "stageId": number, "executorRunTime": 1000 * number} for number in range(250)]
    work = spark_work("app", [*stages, {**STAGE, "status": "SKIPPED", "stageId": 999}], [], 0.0, 0.0, 0.0)
    assert (len(work.stages), work.stages_left_out) == (200, 50)
    assert [row["stage_id"] for row in work.stages] == list(range(50, 250))
    assert work.total.tasks == 4 * 250
