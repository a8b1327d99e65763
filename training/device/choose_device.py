"""The choice of the device on which a process trains or scores."""

from __future__ import annotations

from typing import Literal, assert_never

import torch

from conf.errors import ConfigError


def choose_device(
    wanted: Literal["auto", "cpu", "cuda"], gpu: int | None, setting: Literal["train.device", "score.device"]
) -> torch.device:
    """Returns the CPU, or the GPU with the index `gpu` in torch's list of GPUs.

    Args:
        wanted: `cpu`, `cuda`, or `auto`, which takes a GPU if torch finds one.
        gpu: index of the GPU for this process; None takes the first GPU.
        setting: the name of the setting that has the value `wanted`, for the error message.

    Raises:
        ConfigError: a GPU was chosen, but the GPU with this index does not exist.
    """
    num_gpus = torch.cuda.device_count()
    if wanted == "cpu" or (wanted == "auto" and not num_gpus):
        return torch.device("cpu")
    if wanted != "auto" and wanted != "cuda":
        assert_never(wanted)
    index = gpu or 0
    if index >= num_gpus:
        raise ConfigError(
            f"{setting}={wanted}: this process needs GPU {index}, torch sees {num_gpus} GPUs on this host",
            f"--set {setting}=cpu, or run under a Spark profile whose executors have GPUs, "
            "with no more processes on a host than it has GPUs",
        )
    return torch.device("cuda", index)
