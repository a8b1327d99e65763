"""The body of one rank: a process that Horovod started inside a Spark task."""

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
from training.device.choose_device import choose_device
from training.distributed.progress import Channel, Reporter
from training.launch.outcome import Outcome
from training.loop.run import run_plan
from training.loop.training_plan import TrainPlan

log = logging.getLogger("nightrank.rank")


class HorovodCollectives:
    """`Collectives` over Horovod. Names are fixed, so that Horovod need not agree on them anew at each step."""

    def __init__(self) -> None:
        self.rank = hvd.rank()
        self.size = hvd.size()

    def allreduce_sum(self, values: Tensor) -> Tensor:
        return self.start_allreduce_sum(values)()

    def start_allreduce_sum(self, values: Tensor) -> Callable[[], Tensor]:
        handle = hvd.allreduce_async(values, name="dense", op=hvd.Sum)
        return partial(hvd.synchronize, handle)

    def allgather(self, *tensors: Tensor) -> list[Tensor]:
        return list(hvd.grouped_allgather(list(tensors), name="rows"))

    def all_to_all(self, values: Tensor, splits: Sequence[int]) -> tuple[Tensor, list[int]]:
        # Horovod knows no bfloat16; what it only moves may as well be called float16.
        sent = values.view(torch.float16) if values.dtype == torch.bfloat16 else values
        counts = torch.tensor(list(splits), dtype=torch.int32)
        received, received_counts = hvd.alltoall(sent.contiguous(), splits=counts, name="exchange")
        return received.view(values.dtype), received_counts.tolist()


def run_rank(plan: TrainPlan, threads: int, channel: Channel | None, *, quiet: bool) -> Outcome:
    """Trains as one rank. Errors are returned, not raised: the driver tells the one that matters from its echoes.

    Of an elastic training only what all ranks have agreed to be its end is returned; a rank that cannot even take part in
    that dies of its error, and Spark starts another one.

    Args:
        threads: for torch.
        channel: where the driver hears of progress.
        quiet: whether the driver alone shows the steps.
    """
    # Ctrl-C reaches every process of the terminal; the driver decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _log_to_stderr(quiet)
    torch.set_num_threads(threads)
    try:
        if plan.train.elastic:
            hvd.init()
            return hvd.elastic.run(_train_as_long_as_ranks_stay)(_Ring(), plan, channel)
        try:
            hvd.init()
            return Outcome(description=_train(plan, channel))
        except Exception as error:
            return _outcome_of(error)
    finally:
        hvd.shutdown()


class _Ring(State):
    """What an elastic rank keeps while ranks come and go: nothing but how it failed, if it did.

    Horovod would have this state saved, restored and broadcast by rank 0. Ours is the last checkpoint, from which every
    rank loads its part anew: rows of a table that lay on a lost rank are nowhere else.
    """

    def __init__(self) -> None:
        super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank)
        self.failed: Outcome | None = None

    def save(self) -> None: ...

    def restore(self) -> None: ...

    def sync(self) -> None: ...

    def reset(self) -> None:
        """Frees the model of the ring that broke before another is built."""
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def _train_as_long_as_ranks_stay(ring: _Ring, plan: TrainPlan, channel: Channel | None) -> Outcome:
    """One ring's training; raises what makes Horovod form the next one.

    A rank that fails breaks the ring, and says why when the next has formed: then all return that.
    """
    failed = [each for each in hvd.allgather_object(ring.failed, name="failed") if each is not None]
    if failed:
        return sorted(failed, key=lambda each: each.error is None)[0]
    try:
        return Outcome(description=_train(plan, channel, ring.check_host_updates))
    except (HorovodInternalError, HostsUpdatedInterrupt) as change:
        log.info("%s; the ring forms anew", str(change) or "ranks came or went")
        raise
    except Exception as error:
        ring.failed = _outcome_of(error)
        raise HorovodInternalError("this rank failed") from error


def _train(
    plan: TrainPlan, channel: Channel | None, at_checkpoint: Callable[[], None] | None = None
) -> dict[str, object]:
    device = _device(plan)
    told = (hvd.rank(), hvd.size(), platform.node(), sys.prefix, _gpu_text())
    log.info("rank %d of %d on %s in %s, %s", *told)
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
    """The device of this rank: the GPU that Spark gave its task, or without such the one of its place on the host.

    Raises:
        ConfigError: Spark manages no GPUs, and an elastic rank, which does not know its place on the host, wants one.
    """
    given = _take_gpu()
    index = hvd.local_rank() if given is None else given
    device = choose_device(plan.train.device, index, "train.device")
    if device.type == "cuda":
        if given is None and plan.train.elastic:
            raise ConfigError(
                f"train.device={plan.train.device}, train.elastic: Spark gave this rank's task no GPU, and ranks of a "
                "host cannot share them out among themselves while ranks come and go",
                "set spark.task.resource.gpu.amount, as conf/spark/train-gpu.conf does, or --set train.device=cpu",
            )
        torch.cuda.set_device(device)
    return device


def _take_gpu() -> int | None:
    """Makes the GPU that Spark gave this task the only one torch sees; None where Spark manages no GPUs."""
    devices = get_available_devices()
    if not devices:
        return None
    os.environ["CUDA_VISIBLE_DEVICES"] = str(devices[0])
    return 0


def _gpu_text() -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "all GPUs visible" if visible is None else f"visible GPUs: {visible}"
