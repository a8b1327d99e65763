"""Bins that are the same for every day and column, so that the histograms of several days can be added.

The bins are log-linear, as in HdrHistogram (G. Tene): each power of two is divided into 16 equal parts, on
both sides of zero, and zero has its own bin. A bin is at most 1/16 as wide as the number it starts at;
each integer between -31 and 31 has its own bin. Keys are computed from the bits of the number and not by a
logarithm, so they are equal on every machine.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_PARTS = 16
_SHIFT = 1074  # exponents of doubles begin at -1073 here: shifted, the keys of positive numbers are positive


def bin_keys(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """(n,) finite numbers → (n,) keys, in the order of the numbers: negative below 0, and 0 for zero.

    There are at most 2 × 2,098 × 16 keys besides 0: two signs, 2,098 powers of two, 16 parts.
    """
    mantissa, exponent = np.frexp(np.abs(values))  # |value| = mantissa * 2**exponent, mantissa in [1/2, 1)
    part = ((mantissa - 0.5) * (2 * _PARTS)).astype(np.int64)
    key = (exponent.astype(np.int64) + _SHIFT) * _PARTS + part
    return np.where(values == 0, 0, np.where(values < 0, -key, key))


def bin_bounds(key: int) -> tuple[float, float]:
    """The bounds of the numbers with this key: [low, high) if it is positive, (low, high] if it is negative.

    Key 0 contains only zero. The highest bin ends at infinity, and the lowest begins at minus infinity.
    """
    if key == 0:
        return 0.0, 0.0
    power, part = divmod(abs(key), _PARTS)
    low = math.ldexp(0.5 + part / (2 * _PARTS), power - _SHIFT)
    last = part + 1 == _PARTS and power - _SHIFT == 1024
    high = math.inf if last else math.ldexp(0.5 + (part + 1) / (2 * _PARTS), power - _SHIFT)
    return (low, high) if key > 0 else (-high, -low)
