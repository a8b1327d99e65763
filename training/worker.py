"""The body of one rank: a process that Horovod started inside a Spark task."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError
from horovod.spark.task import get_available_devices
from torch import Tensor

from conf.errors import NightrankError
from training.outcome import Outcome
from training.plan import TrainPlan
from training.run import choose_device, run_plan

log = logging.getLogger("nightrank.rank")


class HorovodCollectives:
    """`Collectives` over Horovod. Names are fixed, so that Horovod need not agree on them anew at each step."""

    def __init__(self) -> None:
        self.rank = hvd.rank()
        self.size = hvd.size()

    def allreduce_sum(self, values: Tensor) -> Tensor:
        return hvd.allreduce(values, name="dense", op=hvd.Sum)

    def allgather(self, *tensors: Tensor) -> list[Tensor]:
        return list(hvd.grouped_allgather(list(tensors), name="rows"))

    def all_to_all(self, values: Tensor, splits: Sequence[int]) -> tuple[Tensor, list[int]]:
        # Horovod knows no bfloat16; what it only moves may as well be called float16.
        sent = values.view(torch.float16) if values.dtype == torch.bfloat16 else values
        counts = torch.tensor(list(splits), dtype=torch.int32)
        received, received_counts = hvd.alltoall(sent.contiguous(), splits=counts, name="exchange")
        return received.view(values.dtype), received_counts.tolist()


def run_rank(plan: TrainPlan, threads: int) -> Outcome:
    """Trains as one rank. Errors are returned, not raised: the driver tells the one that matters from its echoes."""
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
    logging.getLogger("petastorm").setLevel(logging.WARNING)
    try:
        index = _take_gpu()
        torch.set_num_threads(threads)
        hvd.init()
        log.info("rank %d of %d", hvd.rank(), hvd.size())
        device = choose_device(plan.train.device, hvd.local_rank() if index is None else index)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        return Outcome(description=run_plan(plan, HorovodCollectives(), device))
    except NightrankError as error:
        return Outcome(error=error)
    except Exception as error:
        return Outcome(problem=traceback.format_exc(), lost_peer=isinstance(error, HorovodInternalError))
    finally:
        hvd.shutdown()


def _take_gpu() -> int | None:
    """Makes the GPU that Spark gave this task the only one torch sees; None where Spark manages no GPUs."""
    devices = get_available_devices()
    if not devices:
        return None
    os.environ["CUDA_VISIBLE_DEVICES"] = str(devices[0])
    return 0
