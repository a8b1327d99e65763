"""Starts one training on the ranks of a Spark application, through horovod.spark.run."""

from __future__ import annotations

import logging
import os
import signal
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import horovod.runner.launch
import horovod.spark
from pyspark.sql import SparkSession

from conf.errors import InfrastructureError
from training.outcome import Outcome
from training.plan import TrainPlan

log = logging.getLogger("nightrank.launch")

_POLL_S = 1.0


def train_on_ranks(spark: SparkSession, plan: TrainPlan) -> dict[str, Any]:
    """Trains on `plan.train.num_ranks` Spark tasks, one process each.

    The ranks' log lines go to the standard error of their executors, which is the driver's where the master is local.

    Returns:
        The model's description (model.json).

    Raises:
        InfrastructureError: Spark has too few slots, or a rank died; its traceback is in the message.
        ConfigError, DataError: what a rank found wrong.
    """
    _require_slots(spark, plan.train.num_ranks, plan.train.start_timeout_s)
    threads = int(spark.conf.get("spark.task.cpus", "1") or 1)
    with _signals_restored(), _no_fork():
        try:
            outcomes = horovod.spark.run(
                _rank,
                args=(plan, threads),
                num_proc=plan.train.num_ranks,
                start_timeout=plan.train.start_timeout_s,
                use_gloo=True,
                env={"PYTHONPATH": _python_path()},
                verbose=0,
            )
        except Exception as error:
            raise InfrastructureError(
                f"training on {plan.train.num_ranks} ranks broke off: {error}",
                "read the ranks' lines above; a killed rank is often one that ran out of memory. Rerun to resume",
            ) from error
    return _description(outcomes)


def _rank(plan: TrainPlan, threads: int) -> Outcome:
    """Runs in the rank's process; Horovod is initialised there and not in the driver."""
    from training.worker import run_rank

    return run_rank(plan, threads)


def _description(outcomes: list[Outcome]) -> dict[str, Any]:
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    broken = sorted((each for each in outcomes if each.problem), key=lambda each: each.lost_peer)
    if broken:
        raise InfrastructureError(
            f"a rank failed:\n{broken[0].problem}",
            "correct the cause if it is in the traceback; otherwise rerun to resume",
        )
    description = outcomes[0].description
    if description is None:
        raise InfrastructureError("rank 0 ended without a result", "rerun to resume")
    return description


def _require_slots(spark: SparkSession, num_ranks: int, timeout_s: int) -> None:
    """Horovod would wait for missing slots until its time-out; this says at once, or as soon as executors are up."""
    context = spark.sparkContext
    waits_s = 0 if str(context.master).startswith("local[") else timeout_s
    deadline = time.monotonic() + waits_s
    scala = context._jsc.sc()
    while True:
        slots = int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))
        if slots >= num_ranks:
            return
        if time.monotonic() >= deadline:
            raise InfrastructureError(
                f"train.num_ranks={num_ranks} is more than the {slots} tasks that Spark ({context.master}) runs at a time",
                "give Spark more cores or executors in its properties file, or lower train.num_ranks",
            )
        time.sleep(_POLL_S)


def _python_path() -> str:
    """Lets the ranks' interpreters import this package: its folder, or the zip that --py-files put beside them."""
    root: Any = files("training")
    own = f"./{Path(str(root.root.filename)).name}" if isinstance(root, zipfile.Path) else str(root.parent)
    return os.pathsep.join([own, *filter(None, [os.environ.get("PYTHONPATH")])])


@contextmanager
def _no_fork() -> Iterator[None]:
    """Keeps Horovod from forking the driver, only to import torch in the child and ask whether Gloo was built.

    It costs seconds, and the child shares the driver's sockets to the JVM, which it resets when it ends. A build
    without Gloo still ends the ranks at once, in hvd.init().
    """
    asked = horovod.runner.launch.gloo_built
    horovod.runner.launch.gloo_built = lambda verbose=False: True
    try:
        yield
    finally:
        horovod.runner.launch.gloo_built = asked


@contextmanager
def _signals_restored() -> Iterator[None]:
    """Horovod replaces the handlers of SIGINT and SIGTERM for good; afterwards they shall end the driver again."""
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
