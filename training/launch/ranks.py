"""Starts one training on the ranks of a Spark application, through horovod.spark.run or run_elastic.

If there is one rank and Spark runs on this machine only, the rank is the driver's own process.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.resources import files
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import horovod.runner.gloo_run
import horovod.runner.launch
import horovod.spark
import horovod.spark.gloo_run
import horovod.spark.runner
from horovod.runner.util.network import get_local_intfs
from pyspark.sql import SparkSession

from conf.errors import InfrastructureError
from training.launch.slots import cores, cores_of_driver, is_local, largest_number, ranks_to_start
from training.loop.training_plan import TrainPlan
from training.progress import Channel, Listener, RankOutcome, Report

log = logging.getLogger("nightrank.launch")

# If two trainings started at once in one application, each could take some of the slots and then wait forever
# for the others.
_ONE_AT_A_TIME = threading.Lock()

# How long a rank waits in a collective for another rank. The other rank may have left the ring because a
# third rank was lost, or it may still be importing torch from a cold disk. Gloo's default of 30 s is too
# short for such cases.
_COLLECTIVE_TIMEOUT_S = 60
_LOOPBACK = "127.0.0.1"


def train_plan(
    open_session: Callable[[], SparkSession], plan: TrainPlan, show: Report | None = None
) -> dict[str, Any]:
    """Trains as `train_on_ranks` does, but opens a session only if the ranks need one.

    Args:
        open_session: returns the session whose tasks run the ranks.
        plan, show: see `train_on_ranks`.
    """
    usable = cores_of_driver(plan.train)
    if usable is None:
        return train_on_ranks(open_session(), plan, show)
    with _ONE_AT_A_TIME:
        return _train_here(plan, usable, show)


def _train_here(plan: TrainPlan, usable: int, show: Report | None) -> dict[str, Any]:
    from training.launch.in_process import train_in_driver  # imports torch

    return train_in_driver(plan, usable, show)


def train_on_ranks(spark: SparkSession, plan: TrainPlan, show: Report | None = None) -> dict[str, Any]:
    """Trains on `plan.train.num_ranks` ranks. Each rank is a process in its own Spark task.

    If the master is local, a single rank trains in this process instead, with all cores of Spark. Otherwise,
    the ranks write log lines to the standard error of their executors; with a local master, this is the
    driver's standard error. If an application calls this function twice at the same time, the second training
    waits for the first.

    Args:
        spark: the session whose tasks run the ranks.
        plan: the plan of the training.
        show: called with rank 0's history entries; None: no entries are shown. If entries are shown and the
            master is local, the ranks do not log their steps.

    Returns:
        The model's description (model.json).

    Raises:
        InfrastructureError: Spark has too few slots, a rank died, or a signal ended the training.
        ConfigError, DataError: a rank failed with this error.
    """
    with _ONE_AT_A_TIME:
        ranks = ranks_to_start(spark, plan.train)
        if ranks == 1 and is_local(spark) and plan.train.elastic is None:
            return _train_here(plan, cores(spark), show)
        with signals_end_ranks() as received, no_fork(), _listening(spark, show) as channel:
            try:
                outcomes = _run(spark, plan, ranks, channel)
                if None in outcomes:  # Horovod returns None for a rank that a signal ended
                    raise RuntimeError("a rank ended without a result")
            except Exception as error:
                raise _launch_error(plan, ranks, received, error) from error
    return _description([outcome for outcome in outcomes if outcome is not None])


def _run(
    spark: SparkSession, plan: TrainPlan, ranks: int, channel: Channel | None
) -> list[RankOutcome | None]:
    train = plan.train
    threads = int(spark.conf.get("spark.task.cpus", "1") or 1)
    quiet = channel is not None and is_local(spark)
    python = spark.sparkContext.pythonExec  # ranks use the interpreter of Spark's Python workers
    common = {
        "args": (plan, threads, channel, quiet),
        "num_proc": ranks,
        "start_timeout": train.start_timeout_s,
        "env": {
            "PYTHONPATH": _python_path(),
            "HOROVOD_GLOO_TIMEOUT_SECONDS": str(min(train.start_timeout_s, _COLLECTIVE_TIMEOUT_S)),
        },
        "verbose": 0,
        # If all ranks are on this host, they use local interfaces, so other hosts cannot reach their sockets.
        "nics": get_local_intfs() if is_local(spark) else None,
    }
    if train.elastic is None:
        return horovod.spark.run(_rank, use_gloo=True, executable=python, **common)
    with elastic_interpreter(python):
        return horovod.spark.run_elastic(
            _rank,
            min_num_proc=train.elastic.min_ranks,
            max_num_proc=largest_number(spark, train),
            elastic_timeout=train.start_timeout_s,
            **common,
        )


def _rank(plan: TrainPlan, threads: int, channel: Channel | None, quiet: bool) -> RankOutcome:
    """Runs one rank. Horovod calls this function in the rank's process, not in the driver."""
    from training.launch.rank_main import run_rank

    return run_rank(plan, threads, channel, quiet=quiet)


def _listening(spark: SparkSession, show: Report | None) -> Listener | nullcontext[None]:
    """Returns a listener for progress at an address that ranks can reach; for a local master, on loopback."""
    if show is None:
        return nullcontext()
    if is_local(spark):
        return Listener(_LOOPBACK, _LOOPBACK, show)
    conf = spark.sparkContext.getConf()
    host = conf.get("spark.driver.host", "127.0.0.1") or ""
    return Listener(host, conf.get("spark.driver.bindAddress", host) or "", show)


def _launch_error(
    plan: TrainPlan, num_ranks: int, received: list[int], error: Exception
) -> InfrastructureError:
    if received:
        return InfrastructureError(
            f"{signal.Signals(received[0]).name} ended the training",
            "rerun to resume from the last checkpoint",
        )
    ranks = f"{num_ranks} ranks"
    if plan.train.elastic:
        ranks = f"{plan.train.elastic.min_ranks} to {ranks}"
    return InfrastructureError(
        f"training on {ranks} broke off: {error}",
        "read the log lines of the ranks above; a rank is often killed because it ran out of memory. Rerun "
        "to resume from the last checkpoint",
    )


def _description(outcomes: list[RankOutcome]) -> dict[str, Any]:
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    # If a rank failed only because another rank was lost, its failure is secondary.
    failures = sorted(
        (outcome for outcome in outcomes if outcome.problem), key=lambda outcome: outcome.lost_peer
    )
    if failures:
        raise InfrastructureError(
            f"a rank failed:\n{failures[0].problem}",
            "correct the cause if the traceback shows it; otherwise rerun to resume from the last checkpoint",
        )
    description = outcomes[0].description
    if description is None:
        raise InfrastructureError("rank 0 ended without a result", "rerun to resume from the last checkpoint")
    return description


def _python_path() -> str:
    """Returns PYTHONPATH for the ranks. It begins with the folder of this package, or with its zip archive.

    A zip archive is used if --py-files shipped the package.
    """
    root: Any = files("training")
    packages = (
        f"./{Path(str(root.root.filename)).name}" if isinstance(root, zipfile.Path) else str(root.parent)
    )
    return os.pathsep.join([packages, *filter(None, [os.environ.get("PYTHONPATH")])])


# Changes Horovod's behaviour in the driver.
#
# Without these changes, Horovod would fork the driver, and start ranks with the wrong Python interpreter.

_CHECK_GLOO = (horovod.runner.launch, horovod.spark.runner)


@contextmanager
def no_fork() -> Iterator[None]:
    """Prevents Horovod from forking the driver.

    Horovod would fork to import torch and to check for Gloo in the child process. This takes seconds. The
    child process would also inherit the driver's sockets to the JVM, and would reset them when it ends. The
    check is not needed: if Gloo is missing, the ranks end at once in hvd.init().
    """
    originals = [module.gloo_built for module in _CHECK_GLOO]
    for module in _CHECK_GLOO:
        module.gloo_built = lambda verbose=False: True
    try:
        yield
    finally:
        for module, original in zip(_CHECK_GLOO, originals, strict=True):
            module.gloo_built = original


@contextmanager
def elastic_interpreter(python: str) -> Iterator[None]:
    """Makes Horovod start elastic ranks with the interpreter `python`.

    Horovod accepts an interpreter only for ranks that are not elastic. For elastic ranks, Horovod uses the
    path of the driver's interpreter. This path may not exist on executors, because they may have unpacked the
    environment to another folder.
    """
    original = horovod.spark.gloo_run.sys
    horovod.spark.gloo_run.sys = SimpleNamespace(executable=python)
    try:
        yield
    finally:
        horovod.spark.gloo_run.sys = original


# SIGINT (Ctrl-C) and SIGTERM end the ranks during a training.

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_end_ranks() -> Iterator[list[int]]:
    """Lets SIGINT and SIGTERM end the ranks, and restores the former handlers afterwards.

    Horovod's own handlers would stay installed, and would not report which signal arrived. Outside the main
    thread this function does nothing, because Python allows signal handlers only in the main thread.

    Yields:
        The signals that have arrived.
    """
    received: list[int] = []
    ended = threading.Event()
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS} if main else {}

    def end(number: int, frame: FrameType | None) -> None:
        received.append(number)
        ended.set()

    def register() -> threading.Event:
        for number in handlers:
            signal.signal(number, end)
        return ended

    original = horovod.runner.gloo_run.register_shutdown_event
    horovod.runner.gloo_run.register_shutdown_event = register
    try:
        yield received
    finally:
        horovod.runner.gloo_run.register_shutdown_event = original
        for number, handler in handlers.items():
            signal.signal(number, handler)
