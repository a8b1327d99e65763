"""Storage of a table's numbers in 32 bits, or in 16 bits with stochastic rounding of updates.

Rounding to the nearest 16-bit number would lose every update that is smaller than half the distance between
two neighbouring 16-bit numbers. Stochastic rounding rounds up with a probability proportional to the
remainder (Gupta et al. 2015, "Deep Learning with Limited Numerical Precision", ICML, section 3.1), so the
expected value of the rounded number is the number itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from conf.model_types import EmbeddingStorage
from training.embeddings.counter_rng import random_bits

DTYPES: dict[EmbeddingStorage, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}

_FP16_SMALLEST_NORMAL = 2.0**-14
_FP16_SMALLEST = 2.0**-24
_FP16_LARGEST = 65504.0


def round_stochastically(values: Tensor, dtype: torch.dtype, seed: int, rows: Tensor) -> Tensor:
    """Rounds values (N, E) to 16-bit numbers.

    Each value becomes one of its two neighbours, with probabilities that keep the expected value.

    NaN stays NaN. float16 values are clipped to ±65504.

    Args:
        values: (N, E) float32.
        dtype: torch.bfloat16 or torch.float16.
        seed: seed of the random bits.
        rows: (N,), the indices of the rows in the unsharded table. Only seed, row and column determine the
            random bits.
    """
    random = random_bits(seed, rows, range(values.shape[1]))
    if dtype == torch.bfloat16:
        return torch.where(values.isfinite(), _add_and_cut(values, random, 16), values).to(dtype)
    clipped = values.clamp(-_FP16_LARGEST, _FP16_LARGEST)  # keeps NaN
    share = (random & 0xFFFFFF).float().mul_(2.0**-24)
    subnormal = (clipped / _FP16_SMALLEST + share).floor_() * _FP16_SMALLEST
    rounded = torch.where(clipped.abs() < _FP16_SMALLEST_NORMAL, subnormal, _add_and_cut(clipped, random, 13))
    return torch.where(clipped.isnan(), clipped, rounded).to(dtype)


def _add_and_cut(values: Tensor, random: Tensor, bits: int) -> Tensor:
    """Adds random bits to the lowest `bits` bits of each value, and then sets these bits to zero.

    If the addition carries into the higher bits, the value is rounded away from zero.
    """
    below = (1 << bits) - 1
    return ((values.view(torch.int32) + (random & below)) & ~below).view(torch.float32)
