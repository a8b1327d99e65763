"""The compiled grouping of equal keys (group.cpp). training/embeddings/rows.py calls it."""

from __future__ import annotations

import torch
from torch import Tensor

from training.native.library import required_library

KEY_BITS = 31  # larger keys are not supported


def compiled_groups(keys: Tensor, end: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the `keys`, `order` and `starts` of `training.embeddings.rows.Groups`.

    Args:
        keys: (N,) int64 on the CPU, integers in [0, end).
        end: at most 2^KEY_BITS.

    Raises:
        MemoryError: memory ran out.
    """
    keys = keys.contiguous()
    order, distinct, starts = (torch.empty_like(keys) for _ in range(3))
    addresses = (order.data_ptr(), distinct.data_ptr(), starts.data_ptr())
    bits = max(end - 1, 0).bit_length()
    count = required_library().nightrank_group(len(keys), keys.data_ptr(), bits, *addresses)
    if count < 0:
        raise MemoryError
    return distinct[:count], order, starts[:count]
