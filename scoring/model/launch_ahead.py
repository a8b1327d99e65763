"""Starts work on a device before the host reads earlier results, and copies between host and device.

Work on a GPU is asynchronous: the host starts it, and waits only when it reads a result. If the host starts
the next work before it reads a result, the GPU does not become idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item")
Launched = TypeVar("Launched")
Result = TypeVar("Result")


def launch_ahead(
    items: Iterator[Item],
    launch: Callable[[Item], Launched],
    finish: Callable[[Launched], Result],
    ahead: int,
) -> Iterator[Result]:
    """Yields `finish(launch(item))` for each item, in the order of the items.

    Up to `ahead` items are launched before the result of an earlier item is read. If `items` or `launch`
    raises an error, the consumer gets the error after all earlier results.

    Args:
        items: the items.
        launch: starts the work for an item, and does not wait for it.
        finish: waits for the work, and returns its result.
        ahead: maximum number of launched items without a result.
    """
    waiting: deque[Launched] = deque()
    error: Exception | None = None
    while error is None:
        try:
            item = [next(items)]
            waiting.append(launch(item.pop()))  # `pop` lets the item be freed after the launch
        except StopIteration:
            break
        except Exception as raised:
            error = raised
        if len(waiting) > ahead:
            yield finish(waiting.popleft())
    while waiting:
        yield finish(waiting.popleft())
    if error is not None:
        raise error


class ResultCopy:
    """An asynchronous copy of a device's tensor to the host.

    Args:
        tensor: the tensor. The copy begins after the work that is queued on the current stream. For a GPU,
            the host does not wait, and the copy is in pinned memory.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if tensor.device.type == "cpu":
            self._on_host = tensor
            return
        self._on_host = host_tensor(tensor.shape, tensor.dtype, tensor.device)
        self._on_host.copy_(tensor, non_blocking=True)
        if tensor.device.type == "cuda":
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(tensor.device))

    def read(self) -> Tensor:
        """Waits for the copy, and returns it."""
        if self._event is not None:
            self._event.synchronize()
        return self._on_host


def host_tensor(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns a host tensor with undefined numbers, for copies from or to the device.

    For a GPU, the tensor is in pinned memory. torch reuses this memory after the tensor is freed and its
    copies have ended.
    """
    if device.type != "cuda":
        return torch.empty(*shape, dtype=dtype)
    with torch.cuda.device(device):  # without this, torch would also allocate memory on the first GPU
        return torch.empty(*shape, dtype=dtype, pin_memory=True)


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns a host tensor; if the device is a GPU, the tensor is first copied to pinned memory."""
    if device.type != "cuda" or tensor.is_pinned():
        return tensor
    return host_tensor(tensor.shape, tensor.dtype, device).copy_(tensor)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copies a host tensor to a device. For a GPU, the host does not wait for the copy."""
    return pinned(tensor, device).to(device, non_blocking=True)
