"""Stochastic rounding in a kernel: to one of two neighbours, so that the expected value is kept.

Rounding to the nearest number would lose every update of 16-bit weights that is smaller than half the
distance between neighbouring numbers. The random bits come from Philox-4x32-10 (Salmon et al. 2011, "Parallel
random numbers: as easy as 1, 2, 3", SC). They are a function of seed, step, row and column, so they do not
depend on the order of programs or the number of ranks.
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
    """Returns (mantissa bits, lowest exponent) of a dtype; (0, 0) for float32, which needs no rounding."""
    return _GRIDS.get(dtype, (0, 0))


@triton.jit
def philox(seed, step, row, column):
    """Returns 32 random bits for (step, row, column) with the key `seed`; seed and row are int64."""
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
    """Rounds float32 values v to a 16-bit grid: ⌊v / s + u⌋ s, s the spacing at v, u uniform in [0, 1)."""
    exponent = (values.to(tl.int32, bitcast=True) >> 23) & 0xFF
    spacing = ((tl.maximum(exponent, LOWEST) - MANTISSA) << 23).to(tl.float32, bitcast=True)
    uniform = (bits >> 8).to(tl.float32) * (1.0 / 16777216.0)
    return tl.floor(values / spacing + uniform) * spacing
