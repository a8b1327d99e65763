"""Mixed precision: the 16-bit dtype of a precision, and a context in which matrix products use it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def mixed_precision(
    precision: str, device: torch.device, *, cached: bool = True
) -> AbstractContextManager[object]:
    """A context in which matrix products are computed in bf16 or fp16, if that is the precision.

    Args:
        precision: bf16, fp16 or another one, which changes nothing.
        device: on which the products are computed.
        cached: whether a weight that is used twice is cast once.
    """
    kind = HALVES.get(precision)
    return torch.autocast(device.type, kind, cache_enabled=cached) if kind else nullcontext()
