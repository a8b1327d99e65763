"""Random numbers that are a function of their address: (seed, stream, index) → value, in any order, on any worker.

The world (who users are, what items are, how tastes move) is read off these, so that two workers that never met agree
on it. SplitMix64's finaliser does the mixing (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
OOPSLA 2014, fig. 17).
"""

from __future__ import annotations

from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def hashes(seed: int, stream: str, index: NDArray[np.int64]) -> NDArray[np.uint64]:
    """One 64-bit value for each index. Streams of different names are independent."""
    start = np.uint64(int.from_bytes(sha256(f"{seed}/{stream}".encode()).digest()[:8], "little"))
    state = index.astype(np.uint64) * _GAMMA + start
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))


def uniforms(seed: int, stream: str, index: NDArray[np.int64]) -> NDArray[np.float64]:
    """Uniform in [0, 1), one for each index."""
    return (hashes(seed, stream, index) >> np.uint64(11)) * 2.0**-53


def normals(seed: int, stream: str, index: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard normal, one for each index (Box and Muller 1958)."""
    radius = np.sqrt(-2.0 * np.log1p(-uniforms(seed, f"{stream}/radius", index)))
    return np.asarray(radius * np.cos(2.0 * np.pi * uniforms(seed, f"{stream}/angle", index)))


def drifting_normals(
    seed: int, stream: str, index: NDArray[np.int64], day: int, period: int
) -> NDArray[np.float64]:
    """Standard normals that turn into independent ones every `period` days, a little each day.

    On day `d` of a period the value is cos(a)·x + sin(a)·y with a = d / period · π/2, x and y being the draws at the
    period's two ends: the variance stays 1 and values `d` days apart correlate by cos(a).
    """
    knot, step = divmod(day, period)
    angle = step / period * np.pi / 2.0
    before, after = normals(seed, f"{stream}/{knot}", index), normals(seed, f"{stream}/{knot + 1}", index)
    return np.asarray(np.cos(angle) * before + np.sin(angle) * after)
