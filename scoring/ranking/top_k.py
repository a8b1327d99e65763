"""The k best of each row, in a total order: score descending, then item index ascending.

`torch.topk` alone leaves the order of equal scores open. Here score and index become one int64 key, all keys of a row
are distinct, and so every device and every way of cutting the work gives the same answer.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Below the key of every score that is not NaN: marks places of a matrix that hold no candidate.
NO_CANDIDATE = torch.iinfo(torch.int64).min

_INDEX_BITS = 32
_INDEX_MASK = (1 << _INDEX_BITS) - 1
_MAGNITUDE = 0x7FFF_FFFF


def ranking_keys(scores: Tensor, item_index: Tensor) -> Tensor:
    """int64 keys that order as (score descending, index ascending) does when sorted descending.

    The bits of an IEEE 754 float order as a signed integer once those of negative numbers are flipped; they fill the
    upper half, the complement of the index the lower half.

    Args:
        scores: (P,) float32 without NaN; -0.0 counts as 0.0.
        item_index: (P,) integers in [0, 2**32).
    """
    bits = (scores + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & _MAGNITUDE)
    return (ordered.long() << _INDEX_BITS) | (_INDEX_MASK - item_index.long())


def split_keys(keys: Tensor) -> tuple[Tensor, Tensor]:
    """(scores float32, item_index int64) of keys made by ranking_keys, any shape."""
    ordered = (keys >> _INDEX_BITS).to(torch.int32)
    bits = ordered ^ ((ordered >> 31) & _MAGNITUDE)
    return bits.view(torch.float32), _INDEX_MASK - (keys & _INDEX_MASK)


def top_keys(keys: Tensor, k: int) -> Tensor:
    """(U, min(k, W)) highest keys of each row of (U, W), highest first; NO_CANDIDATE where a row has fewer."""
    return torch.topk(keys, min(k, keys.shape[1]), dim=1, sorted=True).values
