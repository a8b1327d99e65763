"""Chooses the device and the streams of a process, and sets mixed precision and the number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Literal, assert_never

import torch
from torch import Tensor

from conf.errors import ConfigError

# The code below chooses the device on which a process trains or scores.


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
            f"{setting}={wanted}: this process needs GPU {index}, but torch finds {num_gpus} GPUs here",
            f"pass --set {setting}=cpu, or run under a Spark profile whose executors have GPUs, "
            "with at most one process for each GPU of a host",
        )
    return torch.device("cuda", index)


def on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Returns a context in which the GPU of a tensor is the current GPU. It has no effect for a CPU tensor.

    torch's operators run on the GPU of their tensors, but Triton launches kernels on the current GPU of the
    thread. That is the first GPU if nothing has chosen another one.
    """
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


@cache
def side_stream(
    device: torch.device, purpose: Literal["loader", "requests", "scoring"]
) -> torch.cuda.Stream | None:
    """Returns a CUDA stream that this process uses beside the main stream of the GPU; None for a CPU.

    Each purpose has one stream, which all threads share. With a new stream for each use, memory would be
    lost: torch reuses freed memory only on the stream for which it was allocated. Work of different threads
    runs in the order in which it was queued. So an event that a thread records after its own work also waits
    for work that other threads have queued before.
    """
    return torch.cuda.Stream(device) if device.type == "cuda" else None


# Mixed precision computes matrix products in a 16-bit dtype.

Precision = Literal["fp32", "tf32", "bf16", "fp16"]


def mixed_precision(
    precision: Precision, device: torch.device, *, cached: bool = True
) -> AbstractContextManager[object]:
    """Returns a context in which matrix products are computed in bf16 or fp16, as `precision` says.

    Args:
        precision: `bf16` or `fp16`; with `fp32` and `tf32`, the context changes nothing.
        device: the device that computes the products.
        cached: whether a weight that is used several times is converted only once.
    """
    kind = product_dtype(precision)
    if kind == torch.float32:
        return nullcontext()
    return torch.autocast(device.type, kind, cache_enabled=cached)


def product_dtype(precision: Precision) -> torch.dtype:
    """Returns the dtype in which operands of matrix products are stored; float32 for `fp32` and `tf32`."""
    if precision == "fp32" or precision == "tf32":
        return torch.float32
    if precision == "bf16":
        return torch.bfloat16
    if precision == "fp16":
        return torch.float16
    assert_never(precision)


def vector_dtype(device: torch.device) -> torch.dtype:
    """Returns the dtype of looked-up vectors that enter only matrix products.

    The dtype is bfloat16 in mixed precision with bfloat16, and float32 otherwise. With fp16, the loss is
    scaled, and gradients are divided by this scale later. They must be float32 by then, because small
    gradients would become zero in fp16.
    """
    if torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type) == torch.bfloat16:
        return torch.bfloat16
    return torch.float32


# The code below sets the number of threads that torch uses on a CPU.


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Makes torch use this number of threads inside the `with` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
