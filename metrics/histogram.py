"""Histogram bins that are the same for every day and column, so that histograms of several days can be added.

The bins are log-linear, as in HdrHistogram (G. Tene): the range from each power of two to the next is divided
into 16 equal bins. Negative numbers have the mirrored bins, and zero has its own bin. The width of a bin is
at most 1/16 of the number at which it starts. Each integer between -31 and 31 has its own bin. The key of a
bin is computed from the bits of a number and not by a logarithm, so it is equal on every machine.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_PARTS = 16
_SHIFT = 1074  # exponents of doubles begin at -1073 here: shifted, the keys of positive numbers are positive


def bin_keys(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns, for each of n finite numbers, the key of its bin: (n,) int64.

    Keys have the same order as the numbers. A key is negative for a number below 0, and 0 for zero. There are
    at most 2 × 2,098 × 16 keys other than 0: two signs, 2,098 powers of two, and 16 bins for each of them.
    """
    mantissa, exponent = np.frexp(np.abs(values))  # |value| = mantissa * 2**exponent, mantissa in [1/2, 1)
    part = ((mantissa - 0.5) * (2 * _PARTS)).astype(np.int64)
    key = (exponent.astype(np.int64) + _SHIFT) * _PARTS + part
    return np.where(values == 0, 0, np.where(values < 0, -key, key))


def bin_bounds(key: int) -> tuple[float, float]:
    """Returns the bounds (low, high) of the bin with this key.

    If the key is positive, the bin contains the numbers in [low, high). If the key is negative, the bin
    contains the numbers in (low, high]. Key 0 contains only zero. The highest bin ends at infinity, and the
    lowest bin begins at minus infinity.
    """
    if key == 0:
        return 0.0, 0.0
    power, part = divmod(abs(key), _PARTS)
    low = math.ldexp(0.5 + part / (2 * _PARTS), power - _SHIFT)
    last = part + 1 == _PARTS and power - _SHIFT == 1024
    high = math.inf if last else math.ldexp(0.5 + (part + 1) / (2 * _PARTS), power - _SHIFT)
    return (low, high) if key > 0 else (-high, -low)
