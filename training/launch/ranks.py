"""Starts one training on the ranks of a Spark application, through horovod.spark.run or run_elastic."""

from __future__ import annotations

import logging
import os
import signal
import threading
import zipfile
from contextlib import nullcontext
from importlib.resources import files
from pathlib import Path
from typing import Any

import horovod.spark
from horovod.runner.util.network import get_local_intfs
from pyspark.sql import SparkSession

from conf.errors import InfrastructureError
from training.distributed.progress import Channel, Listener, Report
from training.launch.horovod_calls import elastic_ranks_run, no_fork, signals_end_ranks
from training.launch.outcome import Outcome
from training.launch.slots import is_local, ranks_to_start
from training.loop.training_plan import TrainPlan

log = logging.getLogger("nightrank.launch")

# Ranks of two trainings in one application would take each other's slots, and both wait for the rest of theirs.
_ONE_AT_A_TIME = threading.Lock()
# How long a rank waits in a collective for one that has left it, because a third was lost; and for one that Spark has just
# started, which may be importing torch from a cold disk. Gloo's own 30 s were too few for that.
_PATIENCE_S = 60
_LOOPBACK = "127.0.0.1"


def train_on_ranks(spark: SparkSession, plan: TrainPlan, show: Report | None = None) -> dict[str, Any]:
    """Trains on `plan.train.num_ranks` Spark tasks, one process each, which form one ring over all executors.

    The ranks' log lines go to the standard error of their executors, which is the driver's where the master is local.
    Called twice at a time in one application, the second training waits for the first.

    Args:
        show: called with rank 0's log entries while it trains; its step lines then stay off the driver's standard error.

    Returns:
        The model's description (model.json).

    Raises:
        InfrastructureError: Spark has too few slots, a rank died, or a signal ended the training.
        ConfigError, DataError: what a rank found wrong.
    """
    with _ONE_AT_A_TIME:
        ranks = ranks_to_start(spark, plan.train)
        with signals_end_ranks() as received, no_fork(), _listening(spark, show) as channel:
            try:
                outcomes = _run(spark, plan, ranks, channel)
            except Exception as error:
                raise _broken_off(plan, received, error) from error
    return _description(outcomes)


def _run(spark: SparkSession, plan: TrainPlan, ranks: int, channel: Channel | None) -> list[Outcome]:
    train = plan.train
    threads = int(spark.conf.get("spark.task.cpus", "1") or 1)
    quiet = channel is not None and is_local(spark)
    python = spark.sparkContext.pythonExec  # that of Spark's Python workers, whose environment ranks run in
    common = {
        "args": (plan, threads, channel, quiet),
        "num_proc": ranks,
        "start_timeout": train.start_timeout_s,
        "env": {
            "PYTHONPATH": _python_path(),
            "HOROVOD_GLOO_TIMEOUT_SECONDS": str(min(train.start_timeout_s, _PATIENCE_S)),
        },
        "verbose": 0,
        # Where all ranks are on this host, nothing listens where another host could reach it.
        "nics": get_local_intfs() if is_local(spark) else None,
    }
    if train.elastic is None:
        return horovod.spark.run(_rank, use_gloo=True, executable=python, **common)
    with elastic_ranks_run(python):
        return horovod.spark.run_elastic(
            _rank,
            min_num_proc=train.elastic.min_ranks,
            max_num_proc=train.num_ranks,
            elastic_timeout=train.start_timeout_s,
            **common,
        )


def _rank(plan: TrainPlan, threads: int, channel: Channel | None, quiet: bool) -> Outcome:
    """Runs in the rank's process; Horovod is initialised there and not in the driver."""
    from training.launch.rank_main import run_rank

    return run_rank(plan, threads, channel, quiet=quiet)


def _listening(spark: SparkSession, show: Report | None) -> Listener | nullcontext[None]:
    """A listener where the executors look for the driver; on the loopback interface where there are none."""
    if show is None:
        return nullcontext()
    if is_local(spark):
        return Listener(_LOOPBACK, _LOOPBACK, show)
    known = spark.sparkContext.getConf()
    host = known.get("spark.driver.host", "127.0.0.1") or ""
    return Listener(host, known.get("spark.driver.bindAddress", host) or "", show)


def _broken_off(plan: TrainPlan, received: list[int], error: Exception) -> InfrastructureError:
    if received:
        return InfrastructureError(
            f"{signal.Signals(received[0]).name} ended the training",
            "rerun to resume from the last checkpoint",
        )
    ranks = f"{plan.train.num_ranks} ranks"
    if plan.train.elastic:
        ranks = f"{plan.train.elastic.min_ranks} to {ranks}"
    return InfrastructureError(
        f"training on {ranks} broke off: {error}",
        "read the ranks' lines above; a killed rank is often one that ran out of memory. Rerun to resume",
    )


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


def _python_path() -> str:
    """Lets the ranks' interpreters import this package: its folder, or the zip that --py-files put beside them."""
    root: Any = files("training")
    own = f"./{Path(str(root.root.filename)).name}" if isinstance(root, zipfile.Path) else str(root.parent)
    return os.pathsep.join([own, *filter(None, [os.environ.get("PYTHONPATH")])])
