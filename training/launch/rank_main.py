"""The main function of one rank: a process that Horovod starts inside a Spark task."""

from __future__ import annotations

import logging
import os
import platform
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError
from horovod.spark.task import get_available_devices
from torch import Tensor

from conf.errors import ConfigError, NightrankError
from training.device.choose_device import choose_device
from training.distributed.progress import Channel, Reporter
from training.launch.elastic import run_elastic_rank
from training.launch.outcome import Outcome
from training.loop.run import run_plan
from training.loop.training_plan import TrainPlan

log = logging.getLogger("nightrank.rank")


class HorovodCollectives:
    """`Collectives` over Horovod. Tensor names are constant, so that Horovod negotiates them only once."""

    def __init__(self) -> None:
        self.rank = hvd.rank()
        self.size = hvd.size()

    def allreduce_sum(self, values: Tensor) -> Tensor:
        """See `Collectives`."""
        return self.start_allreduce_sum(values)()

    def start_allreduce_sum(self, values: Tensor) -> Callable[[], Tensor]:
        """See `Collectives`."""
        handle = hvd.allreduce_async(values, name="dense", op=hvd.Sum)
        return partial(hvd.synchronize, handle)

    def allgather(self, *tensors: Tensor) -> list[Tensor]:
        """See `Collectives`."""
        return list(hvd.grouped_allgather(list(tensors), name="rows"))

    def all_to_all(self, values: Tensor, splits: Sequence[int]) -> tuple[Tensor, list[int]]:
        """See `Collectives`."""
        # Horovod does not support bfloat16. The numbers are not changed on the way, so their bits are sent as
        # float16.
        sent = values.view(torch.float16) if values.dtype == torch.bfloat16 else values
        counts = torch.tensor(list(splits), dtype=torch.int32)
        received, received_counts = hvd.alltoall(sent.contiguous(), splits=counts, name="exchange")
        return received.view(values.dtype), received_counts.tolist()


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
    device = _device(plan)
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


def _device(plan: TrainPlan) -> torch.device:
    """Returns the device of this rank, the CPU or a GPU.

    If Spark manages GPUs, the GPU is that of this rank's Spark task. Otherwise, the index of the GPU is the
    local rank, the index of this rank among the ranks on its host.

    Raises:
        ConfigError: an elastic rank needs a GPU, but Spark does not manage GPUs. The local rank cannot select
            a GPU, because it may change when ranks join or leave.
    """
    gpu_of_task = _take_gpu()
    device = choose_device(
        plan.train.device, hvd.local_rank() if gpu_of_task is None else gpu_of_task, "train.device"
    )
    if device.type == "cuda":
        if gpu_of_task is None and plan.train.elastic:
            raise ConfigError(
                f"train.device={plan.train.device}, train.elastic: Spark gave this rank's task no GPU; in an "
                "elastic training, the ranks of a host cannot choose GPUs themselves, because ranks come and "
                "go",
                "set spark.task.resource.gpu.amount, as conf/spark/train-gpu.conf does, or "
                "--set train.device=cpu",
            )
        torch.cuda.set_device(device)
    return device


def _take_gpu() -> int | None:
    """Makes the GPU of this Spark task the only one that torch sees, and returns its index, which is 0.

    Returns None if Spark does not manage GPUs.
    """
    devices = get_available_devices()
    if not devices:
        return None
    os.environ["CUDA_VISIBLE_DEVICES"] = str(devices[0])
    return 0


def _gpu_text() -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "all GPUs visible" if visible is None else f"visible GPUs: {visible}"
