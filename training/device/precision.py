"""Mixed precision: which 16-bit numbers a precision stands for, and the region in which matrix products use them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def mixed_precision(
    precision: str, device: torch.device, *, cached: bool = True
) -> AbstractContextManager[object]:
    """In which matrix products are computed in bf16 or fp16, if that is the precision.

    Args:
        cached: a weight that is used twice is cast once.
    """
    kind = HALVES.get(precision)
    return torch.autocast(device.type, kind, cache_enabled=cached) if kind else nullcontext()
