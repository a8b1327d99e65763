"""Mixed precision: a context in which matrix products are computed in a 16-bit dtype."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal, assert_never

import torch

Precision = Literal["fp32", "tf32", "bf16", "fp16"]


def mixed_precision(
    precision: Precision, device: torch.device, *, cached: bool = True
) -> AbstractContextManager[object]:
    """Returns a context in which matrix products are computed in bf16 or fp16, if `precision` says so.

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
    """Returns the dtype of the operands of matrix products; float32 for `tf32`, which rounds them itself."""
    if precision == "fp32" or precision == "tf32":
        return torch.float32
    if precision == "bf16":
        return torch.bfloat16
    if precision == "fp16":
        return torch.float16
    assert_never(precision)


def vector_dtype(device: torch.device) -> torch.dtype:
    """Returns the dtype of looked-up vectors that enter only matrix products.

    It is bf16 in mixed precision in bf16, and float32 otherwise. With fp16, the gradients of the scaled loss
    must be divided by the scale in float32, because small gradients are zero in fp16.
    """
    if torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type) == torch.bfloat16:
        return torch.bfloat16
    return torch.float32
