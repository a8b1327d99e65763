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
