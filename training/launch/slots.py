"""Chooses the number of ranks of a training, and checks that Spark can run them.

Without these checks, Horovod would wait, or fail without giving the reason.
"""

from __future__ import annotations

import re
import time

from pyspark.sql import SparkSession

from conf.errors import ConfigError, InfrastructureError
from conf.types import Train
from spark.choose_workers import cores_without_jvm

_POLL_S = 1.0
_LOCAL = re.compile(r"local(\[[^],]*(,\s*(\d+)\s*)?\])?")
_CLUSTER_FAILURES = "4"  # Spark's default of spark.task.maxFailures; a local master ignores the setting


def is_local(spark: SparkSession) -> bool:
    """Returns whether tasks run in the driver's JVM, so that ranks write to the driver's standard error."""
    return _LOCAL.fullmatch(str(spark.sparkContext.master)) is not None


def ranks_to_start(spark: SparkSession, train: Train) -> int:
    """Returns the number of ranks to start.

    This is `train.num_ranks`, or the number that `auto` stands for (`largest_number`), or fewer if an elastic
    training lacks slots. Spark has one slot for each task that it can run at the same time. Unless the master
    is local, this function waits up to `train.start_timeout_s` for slots.

    Raises:
        InfrastructureError: Spark has too few slots.
        ConfigError: the training is elastic, but Spark would stop when the first rank is lost.
    """
    if train.elastic:
        _require_restarts(spark)
    deadline = time.monotonic() + (0 if is_local(spark) else train.start_timeout_s)
    if train.num_ranks == "auto" and not is_local(spark):
        _wait_for_executors(spark, deadline)
    ranks = largest_number(spark, train)
    while (slots := _slots(spark)) < ranks:
        if time.monotonic() >= deadline:
            return _require_slots(spark, train, ranks, slots)
        time.sleep(_POLL_S)
    return ranks


def largest_number(spark: SparkSession, train: Train) -> int:
    """Returns `train.num_ranks`, or the number that `auto` stands for.

    With a local master, `auto` is one rank, or one for each GPU of this machine. With another master, or if
    the training is elastic, it is one rank for each task that Spark can run at the same time. If tasks need a
    GPU, Spark runs one task for each GPU. The number is at most `num_shards`, and divides `num_shards`.
    """
    if train.num_ranks != "auto":
        return train.num_ranks
    places = _local_gpus(train) if is_local(spark) and train.elastic is None else _slots(spark)
    return max(ranks for ranks in range(1, max(places, 1) + 1) if train.num_shards % ranks == 0)


def cores_of_driver(train: Train) -> int | None:
    """Returns the number of cores for one rank in this process, if it is known without a session.

    The result is None if only an open session can show this number, or if there is more than one rank.
    """
    if train.elastic is not None or train.num_ranks not in ("auto", 1):
        return None
    usable = cores_without_jvm()
    if usable is None or (train.num_ranks == "auto" and _local_gpus(train) > 1):
        return None
    return usable


def cores(spark: SparkSession) -> int:
    """Returns the number of cores that the tasks of a session with a local master use together."""
    return max(1, _slots(spark) * int(spark.conf.get("spark.task.cpus", "1") or 1))


def _local_gpus(train: Train) -> int:
    if train.device == "cpu":
        return 0
    import torch  # so the driver of a cluster does not import it

    return torch.cuda.device_count()


def _wait_for_executors(spark: SparkSession, deadline: float) -> None:
    """Waits until Spark has started its executors, because `auto` depends on their number."""
    expected = int(spark.conf.get("spark.executor.instances", "1") or 1)
    scala = spark.sparkContext._jsc.sc()
    while time.monotonic() < deadline:
        if scala.getExecutorMemoryStatus().size() - 1 >= expected and _slots(spark):  # without the driver
            return
        time.sleep(_POLL_S)


def _slots(spark: SparkSession) -> int:
    scala = spark.sparkContext._jsc.sc()
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def _require_slots(spark: SparkSession, train: Train, ranks: int, slots: int) -> int:
    """Returns `slots` if they are enough for the training; otherwise raises InfrastructureError."""
    key, least = "num_ranks", ranks
    if train.elastic:
        key, least = "elastic.min_ranks", train.elastic.min_ranks
        if slots >= least:
            return slots
    raise InfrastructureError(
        f"train.{key}={least} is more than the {slots} tasks that Spark ({spark.sparkContext.master}) runs "
        "at a time",
        f"give Spark more cores or executors in its properties file, or lower train.{key}",
    )


def _require_restarts(spark: SparkSession) -> None:
    """Raises ConfigError unless Spark retries failed tasks, because a lost rank is a failed task."""
    local = _LOCAL.fullmatch(str(spark.sparkContext.master))
    if local:
        failures, remedy = (
            local[3] or "1",
            "set the master to local[2,4], which means two cores and at most four failures of a task",
        )
    else:
        failures = str(spark.conf.get("spark.task.maxFailures", _CLUSTER_FAILURES))
        remedy = "set spark.task.maxFailures to 4 or more in the properties file"
    if int(failures) < 2:
        raise ConfigError(
            f"train.elastic: Spark ({spark.sparkContext.master}) ends the job when a task fails once, so the "
            "training could not continue after a rank is lost",
            remedy,
        )
