"""Finds the k best items of each row, in a total order: score descending, then item index ascending.

`torch.topk` does not define the order of equal scores. So score and index are combined into one int64 key,
and all keys of a row are distinct. The result does not depend on the device or the batch size.
"""

from __future__ import annotations

import torch
from torch import Tensor

# This key is smaller than the key of every score that is not NaN. It marks cells without a candidate.
NO_CANDIDATE = torch.iinfo(torch.int64).min

_INDEX_BITS = 32
_INDEX_MASK = (1 << _INDEX_BITS) - 1
_MAGNITUDE = 0x7FFF_FFFF


def ranking_keys(scores: Tensor, item_index: Tensor) -> Tensor:
    """int64 keys whose descending order is (score descending, index ascending).

    The upper half of a key comes from the bits of the score. Read as integers, the bits of IEEE 754 floats
    have the order of the floats, if the bits of negative floats are flipped except for the sign. The lower
    half of a key is the complement of the index.

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
    """The k highest keys of each row, highest first, then NO_CANDIDATE: (U, W) to (U, min(k, W))."""
    return torch.topk(keys, min(k, keys.shape[1]), dim=1, sorted=True).values
