"""A counter RNG: a random number is a function of a seed, and of a row and a column of an embedding table.

A row is identified by its index in the unsharded table, which contains the rows of all ranks. So a rank that
holds only some rows draws the same random numbers for these rows as a single rank would. The last step (the
finaliser) of splitmix64 computes a 64-bit key from seed and row (Steele, Lea and Flood 2014, "Fast splittable
pseudorandom number generators", OOPSLA, section 3). Two multiplications and three shifts, as in MurmurHash3's
finaliser, compute 32 bits from key and column. The constants of these multiplications and shifts have the
smallest bias among those in Wellons' project hash-prospector.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_GOLDEN_64 = 0x9E3779B97F4A7C15
_MIX_64 = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_GOLDEN_32 = 0x9E3779B9
_MIX_32 = (0x7FEB352D, 0x846CA68B)


def random_bits(seed: int, rows: Tensor, columns: range) -> Tensor:
    """Returns 32 random bits for each row and each column, shape (N, len(columns)) int32.

    `rows` (N,) int64 contains indices of rows of the unsharded table.
    """
    low, high = _keys(seed, rows)
    offsets = torch.tensor([_signed(column * _GOLDEN_32, 32) for column in columns], dtype=torch.int32)
    bits = low.unsqueeze(1) + offsets.to(rows.device)
    bits = _shifted(bits, 16, 32).bitwise_xor_(bits).mul_(_signed(_MIX_32[0], 32))
    bits.bitwise_xor_(high.unsqueeze(1))
    bits = _shifted(bits, 15, 32).bitwise_xor_(bits).mul_(_signed(_MIX_32[1], 32))
    return _shifted(bits, 16, 32).bitwise_xor_(bits)


def uniform(seed: int, rows: Tensor, columns: range) -> Tensor:
    """Returns a uniform random number in [0, 1) for each row and each column.

    The result has the shape (N, len(columns)) and the dtype float32. Its numbers are multiples of 2⁻²⁴.
    """
    return _shifted(random_bits(seed, rows, columns), 8, 32).float().mul_(2.0**-24)


def normal(seed: int, rows: Tensor, dim: int) -> Tensor:
    """Returns `dim` standard normal random numbers for each row, shape (N, dim) float32.

    The method comes from Box and Muller (1958, Annals of Mathematical Statistics 29).
    """
    radius = uniform(seed, rows, range(dim)).neg_().log1p_().mul_(-2).sqrt_()
    return uniform(seed, rows, range(dim, 2 * dim)).mul_(2 * math.pi).cos_().mul_(radius)


def hash_numbers(numbers: Tensor) -> Tensor:
    """Returns a hash for each integer in `numbers` (int64, any shape).

    A hash has 63 bits, so it is never negative.
    """
    return _mixed(numbers * _signed(_GOLDEN_64, 64)).bitwise_and_(2**63 - 1)


def _keys(seed: int, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the lower and the upper 32 bits of the key of each row, two tensors (N,) int32.

    The key of a row is a 64-bit hash of seed and row.
    """
    key = _mixed((rows + 1) * _signed(_GOLDEN_64, 64) + _signed(seed, 64))
    return key.to(torch.int32), _shifted(key, 32, 64).to(torch.int32)


def _mixed(key: Tensor) -> Tensor:
    """Applies the finaliser (the last step) of splitmix64 to integers of 64 bits."""
    for shift, factor in zip((30, 27), _MIX_64, strict=True):
        key = (key ^ _shifted(key, shift, 64)) * _signed(factor, 64)
    return key ^ _shifted(key, 31, 64)


def _shifted(bits: Tensor, places: int, width: int) -> Tensor:
    """Shifts integers of `width` bits to the right by `places` bits, and fills the upper bits with zeros."""
    return (bits >> places).bitwise_and_((1 << (width - places)) - 1)


def _signed(number: int, width: int) -> int:
    """Returns the lowest `width` bits of `number`, read as a signed integer."""
    low = number & ((1 << width) - 1)
    return low - (1 << width) if low >> (width - 1) else low
