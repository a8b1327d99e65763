"""Starts one training run on the ranks of a Spark application, through horovod.spark.run or run_elastic.

The module first chooses the number of ranks, and checks that Spark can run them. If there is one rank and
Spark runs on this machine only, the rank is the driver's own process. Such a driver imports neither Horovod
nor pyspark, which would take half a second. For this reason, Horovod is imported only inside the functions
that need it.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.resources import files
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from conf.errors import ConfigError, InfrastructureError, NightrankError
from conf.types import Train
from spark.choose_workers import cores_without_jvm
from training.loop.training_plan import TrainPlan
from training.progress import Channel, Listener, RankOutcome, Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The code below chooses the number of ranks of a training run, and checks that Spark can run them.
#
# Without these checks, Horovod would wait forever, or fail with an error that does not name the reason.

_POLL_S = 1.0
_LOCAL = re.compile(r"local(\[[^],]*(,\s*(\d+)\s*)?\])?")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Spark's default of spark.task.maxFailures. A local master ignores this setting.
_CLUSTER_FAILURES = "4"


def is_local(spark: SparkSession) -> bool:
    """Returns whether tasks run in the driver's JVM, so that ranks write to the driver's standard error."""
    return _LOCAL.fullmatch(str(spark.sparkContext.master)) is not None


def ranks_to_start(spark: SparkSession, train: Train) -> int:
    """Returns the number of ranks to start.

    This is `train.num_ranks`, or the number that `auto` stands for (`largest_number`). Elastic training
    starts with fewer ranks if Spark has too few slots. Spark has one slot for each task that it can run at
    the same time. Unless the master is local, this function waits up to `train.start_timeout_s` for slots.

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

    With a local master, `auto` means one rank for each GPU of this machine, but at least one rank. With
    another master, or if the training is elastic, it means one rank for each task that Spark can run at the
    same time. If tasks need a GPU, Spark runs one task for each GPU. The number is at most `num_shards`, and
    divides `num_shards`.
    """
    if train.num_ranks != "auto":
        return train.num_ranks
    places = _local_gpus(train) if is_local(spark) and train.elastic is None else _slots(spark)
    return max(ranks for ranks in range(1, max(places, 1) + 1) if train.num_shards % ranks == 0)


def cores_of_driver(train: Train) -> int | None:
    """Returns the number of cores for a single rank in this process, if no session is needed to find it.

    The result is None if this number depends on an open session, or if there is more than one rank.
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
    import torch  # imported here, because the driver of a cluster does not need torch

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
    """Returns `slots`, how many tasks Spark runs at a time. Raises InfrastructureError if it is too low."""
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


log = logging.getLogger("nightrank.launch")

# This lock is held during a training run. If two training runs of an application ran at the same time, each
# could take some of the slots and then wait forever for the rest.
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
        return train_in_driver(plan, usable, show)


def train_on_ranks(spark: SparkSession, plan: TrainPlan, show: Report | None = None) -> dict[str, Any]:
    """Trains on `plan.train.num_ranks` ranks. Each rank is a process in its own Spark task.

    If the master is local, a single rank trains in this process instead, with all cores of Spark. Otherwise,
    the ranks write log lines to the standard error of their executors. With a local master, that is the
    standard error of the driver. If an application calls this function twice at the same time, the second
    call waits for the first.

    Args:
        spark: the session whose tasks run the ranks.
        plan: what to train, on which files, and where to save the model.
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
            return train_in_driver(plan, cores(spark), show)
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
    import horovod.spark
    from horovod.runner.util.network import get_local_intfs

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
        "read the log lines that the ranks wrote before this error; a rank is often killed because it ran "
        "out of memory. Rerun to resume from the last checkpoint",
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
    """Returns PYTHONPATH for the ranks.

    PYTHONPATH begins with the folder of this package. If --py-files shipped the package, PYTHONPATH begins
    with the package's zip archive.
    """
    root: Any = files("training")
    packages = (
        f"./{Path(str(root.root.filename)).name}" if isinstance(root, zipfile.Path) else str(root.parent)
    )
    return os.pathsep.join([packages, *filter(None, [os.environ.get("PYTHONPATH")])])


# The code below changes Horovod's behaviour in the driver.
#
# Without these changes, Horovod would fork the driver, and start ranks with the wrong Python interpreter.


@contextmanager
def no_fork() -> Iterator[None]:
    """Prevents Horovod from forking the driver.

    Horovod would fork to import torch and to check for Gloo in the child process. This takes seconds. The
    child process would also inherit the driver's sockets to the JVM. When it ends, these connections would be
    reset. The check is not needed: if Gloo is missing, the ranks end at once in hvd.init().
    """
    import horovod.runner.launch
    import horovod.spark.runner

    checking = (horovod.runner.launch, horovod.spark.runner)
    originals = [module.gloo_built for module in checking]
    for module in checking:
        module.gloo_built = lambda verbose=False: True
    try:
        yield
    finally:
        for module, original in zip(checking, originals, strict=True):
            module.gloo_built = original


@contextmanager
def elastic_interpreter(python: str) -> Iterator[None]:
    """Makes Horovod start elastic ranks with the interpreter `python`.

    Horovod accepts an interpreter only for ranks that are not elastic. For elastic ranks, Horovod uses the
    path of the driver's interpreter. This path may not exist on executors, because they may have unpacked the
    environment to another folder.
    """
    import horovod.spark.gloo_run

    original = horovod.spark.gloo_run.sys
    horovod.spark.gloo_run.sys = SimpleNamespace(executable=python)
    try:
        yield
    finally:
        horovod.spark.gloo_run.sys = original


# SIGINT (Ctrl-C) and SIGTERM end the ranks during a training run.


@contextmanager
def signals_end_ranks() -> Iterator[list[int]]:
    """Lets SIGINT and SIGTERM end the ranks, and restores the former handlers afterwards.

    Horovod's own handlers would stay installed, and would not report which signal arrived. Outside the main
    thread this function does nothing, because Python allows signal handlers only in the main thread.

    Yields:
        The signals that have arrived.
    """
    import horovod.runner.gloo_run

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


# The code below trains on one rank in the driver's process. No other process is started, and this process
# uses all cores.

_STEPS = logging.getLogger("nightrank.training.steps")


def train_in_driver(plan: TrainPlan, threads: int, show: Report | None) -> dict[str, Any]:
    """Trains a model on one rank, which is this process. SIGINT and SIGTERM end the training.

    Args:
        plan: what to train, on which files, and where to save the model.
        threads: number of threads of torch during the training.
        show: called with the history entries. If it is None, the steps are logged.

    Returns:
        The model's description (model.json).

    Raises:
        InfrastructureError: a signal ended the training, or the training failed for a reason other than the
            configuration or the data.
        ConfigError, DataError: see `run_plan`.
    """
    # These modules import torch, which a driver with several ranks does not need.
    from training.collectives import LocalCollectives
    from training.device import choose_device, torch_threads
    from training.loop.run import run_plan

    with torch_threads(threads), _steps_logged(show is None), _ended_by_signals():
        device = choose_device(plan.train.device, 0, "train.device")
        try:
            return run_plan(plan, LocalCollectives(), device, report=show)
        except NightrankError:
            raise
        except Exception as error:
            problem = "".join(traceback.format_exception(error))
            raise InfrastructureError(
                f"the training failed:\n{problem}",
                "correct the cause if the traceback shows it; otherwise rerun to resume from the last "
                "checkpoint",
            ) from error


@contextmanager
def _steps_logged(logged: bool) -> Iterator[None]:
    before = _STEPS.level
    if not logged:
        _STEPS.setLevel(logging.WARNING)
    try:
        yield
    finally:
        _STEPS.setLevel(before)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Makes SIGINT and SIGTERM raise InfrastructureError, as in a training run on several ranks.

    Outside the main thread this function does nothing, because Python allows signal handlers only there.
    """

    def end(number: int, _: FrameType | None) -> None:
        raise InfrastructureError(
            f"{signal.Signals(number).name} ended the training", "rerun to resume from the last checkpoint"
        )

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
