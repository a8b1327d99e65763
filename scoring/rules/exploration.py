"""Exploration: draws candidates in a random order. The sort key is a hash of salt, user and item."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

_MULTIPLIERS = (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)  # of SplitMix64, as signed numbers
_SHIFTS = (30, 27, 31)


def text_hashes(texts: Iterable[str], salt: str = "") -> Tensor:
    """Returns an int64 hash of each text, shape (n,).

    The hash consists of the first 8 bytes of BLAKE2b of three strings: `salt`, a zero byte, and the text.
    """
    start = blake2b(salt.encode() + b"\0", digest_size=8)
    digests = []
    for text in texts:
        digest = start.copy()
        digest.update(text.encode())
        digests.append(digest.digest())
    return torch.from_numpy(np.frombuffer(b"".join(digests), dtype="<i8").copy())


def draw_keys(users: Tensor, items: Tensor) -> Tensor:
    """Returns a random sort key for each pair of user and item, shape (U, W), int64, in [-2**62, 2**62).

    The keys are uniformly distributed. A key is a hash of the user's hash and the item's hash: the upper 63
    bits of the last step (the finaliser) of SplitMix64. See G. Steele, D. Lea and C. Flood 2014, section 3.

    Args:
        users: (U,) int64 hashes of the users, which include the salt.
        items: (U, W) int64 hashes of the items.
    """
    mixed = users[:, None] ^ items
    for shift, multiplier in zip(_SHIFTS[:2], _MULTIPLIERS, strict=True):
        mixed = (mixed ^ _logical_shift(mixed, shift)) * multiplier
    return (mixed ^ _logical_shift(mixed, _SHIFTS[2])) >> 1


def _logical_shift(values: Tensor, by: int) -> Tensor:
    """Shifts int64 numbers to the right by `by` bits, as if they were unsigned."""
    return (values >> by) & ((1 << (64 - by)) - 1)
