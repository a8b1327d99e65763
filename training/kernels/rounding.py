"""Stochastic rounding in a kernel, to one of the two neighbours with probabilities that keep the mean.

Rounding to nearest would lose every update of 16-bit weights that is smaller than half their spacing. The
random bits are those of Philox-4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3",
SC). They are a function of seed, step, row and column, so neither the order of programs nor the number of
ranks changes them.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton gives the parameters of kernels their types)

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Mantissa bits, and the biased float32 exponent below which the spacing is constant.
_GRIDS = {torch.bfloat16: (7, 8), torch.float16: (10, 113)}


def grid_of(dtype: torch.dtype) -> tuple[int, int]:
    """(mantissa bits, lowest exponent) of a storage dtype; (0, 0) for float32, which needs no rounding."""
    return _GRIDS.get(dtype, (0, 0))


@triton.jit
def philox(seed, step, row, column):
    """32 random bits for (step, row, column): row is int64, the others int32. The key is seed, int64."""
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
    """float32 values on a 16-bit grid: ⌊v / s + u⌋ s with the spacing s at v, and u uniform in [0, 1)."""
    exponent = (values.to(tl.int32, bitcast=True) >> 23) & 0xFF
    spacing = ((tl.maximum(exponent, LOWEST) - MANTISSA) << 23).to(tl.float32, bitcast=True)
    uniform = (bits >> 8).to(tl.float32) * (1.0 / 16777216.0)
    return tl.floor(values / spacing + uniform) * spacing
