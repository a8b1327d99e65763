"""Which GPU a rank trains on: the GPU of its Spark task, or else the GPU with its local rank."""

from __future__ import annotations

import os

import horovod.torch as hvd
import torch
from horovod.spark.task import get_available_devices

from conf.errors import ConfigError
from conf.types import Train
from training.device.choose_device import choose_device


def device_of_rank(train: Train) -> torch.device:
    """Returns the device of this rank, the CPU or a GPU.

    If Spark manages GPUs, the GPU is that of this rank's Spark task. Otherwise, the index of the GPU is the
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
                f"train.device={train.device}, train.elastic: Spark gave this rank's task no GPU; in an "
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
