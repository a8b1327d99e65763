"""The main function of one rank: a process that Horovod starts inside a Spark task."""

from __future__ import annotations

import logging
import os
import platform
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError

from conf.errors import NightrankError
from training.distributed.progress import Channel, Reporter
from training.launch.elastic import run_elastic_rank
from training.launch.horovod_collectives import HorovodCollectives
from training.launch.outcome import Outcome
from training.launch.rank_device import device_of_rank
from training.loop.run import run_plan
from training.loop.training_plan import TrainPlan

log = logging.getLogger("nightrank.rank")


def run_rank(plan: TrainPlan, threads: int, channel: Channel | None, *, quiet: bool) -> Outcome:
    """Runs one rank of a training. Errors are returned, so that the driver can find the root cause.

    In an elastic training, the ranks exchange their outcomes, so that all ranks return the same outcome. If a
    rank cannot take part in this exchange, it ends with its error, and Spark starts another rank.

    Args:
        plan: the plan of the training.
        threads: number of threads for torch.
        channel: the driver's channel for progress; None if the driver does not listen.
        quiet: True if this rank must not log its steps, because the driver shows them.
    """
    # Ctrl-C sends SIGINT to all processes of the terminal; only the driver must handle it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _log_to_stderr(quiet)
    torch.set_num_threads(threads)
    try:
        if plan.train.elastic:
            hvd.init()
            return run_elastic_rank(partial(_train, plan, channel), _outcome_of)
        try:
            hvd.init()
            return Outcome(description=_train(plan, channel))
        except Exception as error:
            return _outcome_of(error)
    finally:
        hvd.shutdown()


def _train(
    plan: TrainPlan, channel: Channel | None, at_checkpoint: Callable[[], None] | None = None
) -> dict[str, object]:
    device = device_of_rank(plan.train)
    where = (platform.node(), sys.prefix, _gpu_text())
    log.info("rank %d of %d on %s in %s, %s", hvd.rank(), hvd.size(), *where)
    reports = hvd.rank() == 0 and channel is not None
    with Reporter(channel) if reports and channel else nullcontext() as report:
        return run_plan(plan, HorovodCollectives(), device, report=report, at_checkpoint=at_checkpoint)


def _outcome_of(error: Exception) -> Outcome:
    if isinstance(error, NightrankError):
        return Outcome(error=error)
    problem = "".join(traceback.format_exception(error))
    return Outcome(problem=problem, lost_peer=isinstance(error, HorovodInternalError))


def _log_to_stderr(quiet: bool) -> None:
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
    logging.getLogger("petastorm").setLevel(logging.WARNING)
    if quiet:
        logging.getLogger("nightrank.training.steps").setLevel(logging.WARNING)


def _gpu_text() -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "all GPUs visible" if visible is None else f"visible GPUs: {visible}"
