"""Counter RNG: each random number is a function of a seed, the name of a stream, and an index.

Users, items and tastes are drawn with this generator. So all workers get the same users, items and tastes, in
whichever order they draw them. A random number is the hash of seed, stream and index, computed with the last
step (the finaliser) of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
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
    """Returns one hash of 64 bits per index, shape (n,). Streams with different names are independent."""
    start = np.uint64(int.from_bytes(sha256(f"{seed}/{stream}".encode()).digest()[:8], "little"))
    state = index.astype(np.uint64) * _GAMMA + start
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))


def uniforms(seed: int, stream: str, index: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns one random number per index, shape (n,), uniformly distributed in [0, 1)."""
    return (hashes(seed, stream, index) >> np.uint64(11)) * 2.0**-53


def normals(seed: int, stream: str, index: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns one standard normal number per index, shape (n,) (Box and Muller 1958)."""
    radius = np.sqrt(-2.0 * np.log1p(-uniforms(seed, f"{stream}/radius", index)))
    return np.asarray(radius * np.cos(2.0 * np.pi * uniforms(seed, f"{stream}/angle", index)))


def drifting_normals(
    seed: int, stream: str, index: NDArray[np.int64], day: int, period: int
) -> NDArray[np.float64]:
    """Returns one standard normal number per index, shape (n,). The numbers change a little each day.

    Time is divided into periods of `period` days. On day d of a period, the result is cos(a)·x + sin(a)·y.
    Here a is d / period · π/2, x is a normal number drawn for this period, and y is a normal number drawn for
    the next period. The variance is always 1. The correlation of the results of day 0 and day d of a period
    is cos(a).
    """
    index_of_period, step = divmod(day, period)
    angle = step / period * np.pi / 2.0
    start = normals(seed, f"{stream}/{index_of_period}", index)
    end = normals(seed, f"{stream}/{index_of_period + 1}", index)
    return np.asarray(np.cos(angle) * start + np.sin(angle) * end)
