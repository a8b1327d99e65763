"""The k best of each row, in a total order: score descending, then item index ascending.

`torch.topk` does not define the order of equal scores. Here score and index are combined into one int64 key,
so all keys of a row are distinct. Devices and batch sizes do not change the result.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Below the key of every score that is not NaN. It marks the cells of a matrix without a candidate.
NO_CANDIDATE = torch.iinfo(torch.int64).min

_INDEX_BITS = 32
_INDEX_MASK = (1 << _INDEX_BITS) - 1
_MAGNITUDE = 0x7FFF_FFFF


def ranking_keys(scores: Tensor, item_index: Tensor) -> Tensor:
    """int64 keys: sorted descending, they are in the order (score descending, index ascending).

    The bits of an IEEE 754 float have the order of a signed integer after those of negative numbers are
    flipped. They are the upper half of a key. The complement of the index is the lower half.

    Args:
        scores: (P,) float32 without NaN; -0.0 equals 0.0.
        item_index: (P,) integers in [0, 2**32).
    """
    bits = (scores + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & _MAGNITUDE)
    return (ordered.long() << _INDEX_BITS) | (_INDEX_MASK - item_index.long())


def split_keys(keys: Tensor) -> tuple[Tensor, Tensor]:
    """(scores float32, item_index int64) of keys of any shape; the inverse of ranking_keys."""
    ordered = (keys >> _INDEX_BITS).to(torch.int32)
    bits = ordered ^ ((ordered >> 31) & _MAGNITUDE)
    return bits.view(torch.float32), _INDEX_MASK - (keys & _INDEX_MASK)


def top_keys(keys: Tensor, k: int) -> Tensor:
    """(U, min(k, W)) highest keys of each row of (U, W), highest first; NO_CANDIDATE after the last one."""
    return torch.topk(keys, min(k, keys.shape[1]), dim=1, sorted=True).values
