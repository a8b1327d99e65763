"""Mixed precision: a context in which matrix products are computed in a 16-bit dtype."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def mixed_precision(
    precision: str, device: torch.device, *, cached: bool = True
) -> AbstractContextManager[object]:
    """Returns a context in which matrix products are computed in bf16 or fp16, if `precision` says so.

    Args:
        precision: `bf16` or `fp16`; with other values the context changes nothing.
        device: the device that computes the products.
        cached: whether a weight that is used several times is converted only once.
    """
    kind = HALVES.get(precision)
    return torch.autocast(device.type, kind, cache_enabled=cached) if kind else nullcontext()


def vector_dtype(device: torch.device) -> torch.dtype:
    """Returns the dtype of looked-up vectors that enter only matrix products.

    It is bf16 in mixed precision in bf16, and float32 otherwise. With fp16, the gradients of the scaled loss
    must be divided by the scale in float32, because small gradients are zero in fp16.
    """
    if torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type) == torch.bfloat16:
        return torch.bfloat16
    return torch.float32
