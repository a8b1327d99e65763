"""The main function of one rank: a process that Horovod starts inside a Spark task."""

from __future__ import annotations

import gc
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
from horovod.common.elastic import State
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.spark.task import get_available_devices
from torch import Tensor

from conf.errors import ConfigError, NightrankError
from conf.types import Train
from training.collectives import ReceivedRows
from training.device import choose_device
from training.loop.run import run_plan
from training.loop.training_plan import TrainPlan
from training.progress import Channel, RankOutcome, Reporter

log = logging.getLogger("nightrank.rank")


def run_rank(plan: TrainPlan, threads: int, channel: Channel | None, *, quiet: bool) -> RankOutcome:
    """Runs one rank of a training run.

    This function returns errors and does not raise them, so that the driver can find the root cause. In
    elastic training, the ranks exchange their outcomes, so that all ranks return the same outcome. If a rank
    cannot take part in this exchange, it ends with its error, and Spark starts another rank.

    Args:
        plan: what to train, on which files, and where to save the model.
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
            return RankOutcome(description=_train(plan, channel))
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


def _outcome_of(error: Exception) -> RankOutcome:
    if isinstance(error, NightrankError):
        return RankOutcome(error=error)
    problem = "".join(traceback.format_exception(error))
    return RankOutcome(problem=problem, lost_peer=isinstance(error, HorovodInternalError))


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


# The code below does elastic training on one rank. When a rank is lost or joins, the ranks form a new ring
# and continue.
#
# A ring is a group of ranks that train together. Each ring builds a new model and continues from the last
# checkpoint (training/checkpoints/checkpoints.py). This checkpoint may have been written by a different
# number of ranks. ranks.py starts the ranks; if a rank is lost, Horovod's driver starts a new rank.

# A function that trains one ring to the end. At each checkpoint, it calls the function that it gets as its
# argument. That function raises an error if ranks have joined or left.
TrainRing = Callable[[Callable[[], None]], dict[str, object]]


def run_elastic_rank(train: TrainRing, outcome_of: Callable[[Exception], RankOutcome]) -> RankOutcome:
    """Trains in one ring (group of ranks) after another until the training ends or a rank fails.

    The ranks exchange their outcomes, so that all ranks return the same outcome. If a rank cannot take part
    in this exchange, it ends with its error, and Spark starts another rank.

    Args:
        train: trains in the current ring, and returns the model's description, the content of model.json.
        outcome_of: converts the error of a failed rank to the outcome of this rank.
    """
    return hvd.elastic.run(_train_in_ring)(_Ring(), train, outcome_of)


class _Ring(State):
    """The state that an elastic rank keeps when ranks join or leave: the failure of a rank, if one failed.

    Horovod can save and restore such a state and broadcast it from rank 0. This class does not use these
    functions. Instead, every rank loads its state from the last checkpoint, because the table rows of a lost
    rank are on no other rank.
    """

    def __init__(self) -> None:
        super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank)
        self.failed: RankOutcome | None = None

    def save(self) -> None:
        """Does nothing: after a failure, a rank reads its state from the newest checkpoint."""

    def restore(self) -> None:
        """Does nothing: after a failure, a rank reads its state from the newest checkpoint."""

    def sync(self) -> None:
        """Does nothing: after a failure, a rank reads its state from the newest checkpoint."""

    def reset(self) -> None:
        """Frees the model of the broken ring (the former group of ranks) before the next model is built."""
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def _train_in_ring(
    ring: _Ring, train: TrainRing, outcome_of: Callable[[Exception], RankOutcome]
) -> RankOutcome:
    """Trains until the end, or until the ring (the group of ranks) changes.

    If the ring changes, this function raises an error, and Horovod forms the next ring.

    If a rank fails, the ring breaks. The rank reports its failure in the next ring, and then all ranks return
    this failure.
    """
    outcomes = hvd.allgather_object(ring.failed, name="failed")
    failures = [outcome for outcome in outcomes if outcome is not None]
    if failures:
        return sorted(failures, key=lambda outcome: outcome.error is None)[0]
    try:
        return RankOutcome(description=train(ring.check_host_updates))
    except (HorovodInternalError, HostsUpdatedInterrupt) as change:
        log.info("%s; a new ring is formed", str(change) or "ranks joined or left")
        raise
    except Exception as error:
        ring.failed = outcome_of(error)
        raise HorovodInternalError("this rank failed") from error


# The code below chooses the GPU on which a rank trains: the GPU of its Spark task or, if Spark does not
# manage GPUs, the GPU whose index is the local rank.


def device_of_rank(train: Train) -> torch.device:
    """Returns the device of this rank, the CPU or a GPU.

    If Spark manages GPUs, it is the GPU of this rank's Spark task. Otherwise, the index of the GPU is the
    local rank, the index of this rank among the ranks on its host.

    Raises:
        ConfigError: an elastic rank needs a GPU, but Spark does not manage GPUs. The local rank cannot select
            a GPU, because it may change when ranks join or leave.
    """
    gpu_of_task = _take_gpu()
    device = choose_device(
        train.device, hvd.local_rank() if gpu_of_task is None else gpu_of_task, "train.device"
    )
    if device.type == "cuda":
        if gpu_of_task is None and train.elastic:
            raise ConfigError(
                f"train.device={train.device}, train.elastic: Spark assigned no GPU to this rank's task. "
                "In elastic training, GPUs cannot be chosen by local rank, because the local rank of a "
                "process can change",
                "set spark.task.resource.gpu.amount, as conf/spark/train-gpu.conf does, or "
                "pass --set train.device=cpu",
            )
        torch.cuda.set_device(device)
    return device


def _take_gpu() -> int | None:
    """Makes the GPU of this Spark task the only one that torch can use, and returns its index, which is 0.

    Returns None if Spark does not manage GPUs.
    """
    devices = get_available_devices()
    if not devices:
        return None
    os.environ["CUDA_VISIBLE_DEVICES"] = str(devices[0])
    return 0


# The code below implements the collectives of a training run with Horovod: sums, gathers and exchanges of
# tensors between ranks.


class HorovodCollectives:
    """`Collectives` over Horovod.

    All calls of a method give their tensors the same name, because the ranks must negotiate each new name.
    """

    def __init__(self) -> None:
        self.rank = hvd.rank()
        self.size = hvd.size()

    def allreduce_sum(self, values: Tensor) -> Tensor:
        """See `Collectives`."""
        summed: Tensor = hvd.allreduce(values, name="sum", op=hvd.Sum)
        return summed

    def start_allreduce_sum(self, values: Tensor, name: str) -> Callable[[], Tensor]:
        """See `Collectives`."""
        handle = hvd.allreduce_async_(values, name=name, op=hvd.Sum)
        return lambda: hvd.synchronize(handle)

    def allgather(self, *tensors: Tensor) -> list[Tensor]:
        """See `Collectives`."""
        return list(hvd.grouped_allgather(list(tensors), name="rows"))

    def all_to_all(self, values: Tensor, splits: Sequence[int]) -> tuple[Tensor, list[int]]:
        """See `Collectives`."""
        return self.start_all_to_all(values, splits, "exchange")()

    def start_all_to_all(self, values: Tensor, splits: Sequence[int], name: str) -> ReceivedRows:
        """See `Collectives`."""
        # Horovod does not support bfloat16. An exchange does not change numbers, so the bits of bfloat16
        # numbers are sent as float16.
        sent = values.view(torch.float16) if values.dtype == torch.bfloat16 else values
        counts = torch.tensor(list(splits), dtype=torch.int32)
        handle = hvd.alltoall_async(sent.contiguous(), splits=counts, name=name)

        def wait() -> tuple[Tensor, list[int]]:
            received, received_counts = hvd.synchronize(handle)
            return received.view(values.dtype), received_counts.tolist()

        return wait
