"""Finds the k best items of each row, in a total order: score descending, then item index ascending.

`torch.topk` does not define the order of equal scores. Therefore score and item index are combined into one
int64, the ranking key. All ranking keys of a row are distinct, so the result does not depend on the device or
the batch size.
"""

from __future__ import annotations

import torch
from torch import Tensor

# The key of cells without a candidate. It is smaller than the key of every score that is not NaN.
NO_CANDIDATE = torch.iinfo(torch.int64).min

_INDEX_BITS = 32
_INDEX_MASK = (1 << _INDEX_BITS) - 1
_MAGNITUDE = 0x7FFF_FFFF


def ranking_keys(scores: Tensor, item_index: Tensor) -> Tensor:
    """Returns one int64 ranking key per score.

    A higher score has a larger key. Of equal scores, the score with the smaller item index has the larger
    key.

    The upper half of a key is computed from the bits of the score. If the bits of a nonnegative IEEE 754
    float are read as an integer, the integers have the same order as the floats. For a negative float, all
    bits except the sign must be flipped first. The lower half of a key is the complement of the item index.

    Args:
        scores: (P,) float32 without NaN; -0.0 equals 0.0.
        item_index: (P,) integers in [0, 2**32).
    """
    bits = (scores + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & _MAGNITUDE)
    return (ordered.long() << _INDEX_BITS) | (_INDEX_MASK - item_index.long())


def split_keys(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the float32 scores and the int64 item indices of ranking keys: the inverse of `ranking_keys`.

    The keys may have any shape. Both results have the same shape as the keys.
    """
    ordered = (keys >> _INDEX_BITS).to(torch.int32)
    bits = ordered ^ ((ordered >> 31) & _MAGNITUDE)
    return bits.view(torch.float32), _INDEX_MASK - (keys & _INDEX_MASK)


def top_keys(keys: Tensor, k: int) -> Tensor:
    """Returns the k highest keys of each row in descending order.

    A matrix of shape (U, W) becomes a matrix of shape (U, min(k, W)). If a row has fewer candidates,
    NO_CANDIDATE fills the end of the row.
    """
    return torch.topk(keys, min(k, keys.shape[1]), dim=1, sorted=True).values
