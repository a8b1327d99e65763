"""Stochastic rounding of float32 numbers to a 16-bit format, for use in Triton kernels.

A number becomes one of its two neighbours in the 16-bit format, at random, so that the expected value of the
result is the number itself. Rounding to the nearest neighbour would lose every update that is smaller than
half the distance between two neighbours.

The random bits come from Philox-4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3",
SC). The random bits are a function of seed, step, row and column, so the order in which the programs
(instances of a kernel) run does not change them.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton determines the types of kernel parameters)

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Number of mantissa bits, and the biased float32 exponent below which the spacing of numbers is constant.
_GRIDS = {torch.bfloat16: (7, 8), torch.float16: (10, 113)}


def grid_of(dtype: torch.dtype) -> tuple[int, int]:
    """Returns the number of mantissa bits and the lowest exponent of a dtype.

    The result is (0, 0) for float32, which needs no rounding.

    The lowest exponent is a biased float32 exponent. Below it, the distance between neighbouring numbers of
    the dtype is constant.
    """
    return _GRIDS.get(dtype, (0, 0))


@triton.jit
def philox(seed, step, row, column):
    """Returns 32 random bits for a step, a row and a column, computed by Philox with the key `seed`.

    `seed` and `row` are int64.
    """
    c0 = column.to(tl.uint32)
    c1 = row.to(tl.uint32) + c0 * 0
    c2 = (row >> 32).to(tl.uint32) + c0 * 0
    c3 = step.to(tl.uint32) + c0 * 0
    key = seed.to(tl.uint64)
    k0 = key.to(tl.uint32) + c0 * 0
    k1 = (key >> 32).to(tl.uint32) + c0 * 0
    for _ in tl.static_range(10):
        product0 = c0.to(tl.uint64) * 0xD2511F53
        product2 = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (product2 >> 32).to(tl.uint32) ^ c1 ^ k0
        c2 = (product0 >> 32).to(tl.uint32) ^ c3 ^ k1
        c1 = product2.to(tl.uint32)
        c3 = product0.to(tl.uint32)
        k0 = k0 + 0x9E3779B9
        k1 = k1 + 0xBB67AE85
    return c0


@triton.jit
def round_stochastic(values, bits, MANTISSA: tl.constexpr, LOWEST: tl.constexpr):
    """Rounds each float32 value v at random to one of its two neighbours in a 16-bit format.

    The result is ⌊v / s + u⌋ · s. Here s is the distance between neighbouring 16-bit numbers near v, and u is
    a uniform random number in [0, 1), made from `bits`. MANTISSA and LOWEST are the results of `grid_of`.
    """
    exponent = (values.to(tl.int32, bitcast=True) >> 23) & 0xFF
    spacing = ((tl.maximum(exponent, LOWEST) - MANTISSA) << 23).to(tl.float32, bitcast=True)
    uniform = (bits >> 8).to(tl.float32) * (1.0 / 16777216.0)
    return tl.floor(values / spacing + uniform) * spacing
