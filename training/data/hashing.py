"""A 64-bit hash of numbers, as tensors: the same on every device and for every number of ranks."""

from __future__ import annotations

from torch import Tensor

_INCREMENT = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def mix(values: Tensor) -> Tensor:
    """Returns SplitMix64 of each int64 number (Steele et al. 2014, OOPSLA, section 5), as int64.

    Sums and products of int64 tensors drop the bits above 64, as the method requires.
    """
    state = values + _INCREMENT
    state = (state ^ _shift_right(state, 30)) * _FIRST
    state = (state ^ _shift_right(state, 27)) * _SECOND
    return state ^ _shift_right(state, 31)


def uniform(values: Tensor) -> Tensor:
    """Returns the upper 53 bits of each int64 hash as a float64 number in [0, 1)."""
    return _shift_right(values, 11).double() * 2.0**-53


def _shift_right(values: Tensor, bits: int) -> Tensor:
    """Shifts int64 numbers to the right and fills the upper bits with zeros."""
    return (values >> bits) & (2 ** (64 - bits) - 1)
