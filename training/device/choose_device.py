"""The choice of the device on which a process trains or scores."""

from __future__ import annotations

from typing import Literal

import torch

from conf.errors import ConfigError


def choose_device(
    wanted: str, gpu: int | None, setting: Literal["train.device", "score.device"]
) -> torch.device:
    """The CPU, or the GPU with an index among those that torch sees.

    Args:
        wanted: `cpu`, `cuda`, or `auto`, which takes a GPU if torch sees any.
        gpu: index of the GPU for this process; None takes the first.
        setting: the name of the setting that `wanted` is the value of, for the error.

    Raises:
        ConfigError: the GPU does not exist, unless the choice is the CPU.
    """
    num_gpus = torch.cuda.device_count()
    if wanted == "cpu" or (wanted == "auto" and not num_gpus):
        return torch.device("cpu")
    index = gpu or 0
    if index >= num_gpus:
        raise ConfigError(
            f"{setting}={wanted}: this process needs GPU {index}, torch sees {num_gpus} GPUs on this host",
            f"--set {setting}=cpu, or run under a Spark profile whose executors have GPUs, "
            "with no more processes on a host than it has GPUs",
        )
    return torch.device("cuda", index)
