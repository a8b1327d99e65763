"""How the numbers of a table are stored: 32 bits, or 16 with stochastic rounding where an update is written.

Rounded to the nearest, an update smaller than half the distance of two neighbouring numbers would be lost, every time.
Rounded up with the probability of its remainder it counts on average (Gupta et al. 2015, "Deep Learning with Limited
Numerical Precision", ICML, section 3.1): the rounded number's expectation is the number itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from conf.train_types import EmbeddingStorage
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
    """Values (N, E) float32 as 16-bit numbers: one of the two neighbours, each with the probability that keeps the mean.

    Numbers that are no numbers stay so; float16 ends at ±65504.

    Args:
        dtype: torch.bfloat16 or torch.float16.
        seed, rows: (N,) rows of the unsharded table; the choice follows from them and the column alone.
    """
    random = random_bits(seed, rows, range(values.shape[1]))
    if dtype == torch.bfloat16:
        return torch.where(values.isfinite(), _add_and_cut(values, random, 16), values).to(dtype)
    held = values.clamp(-_FP16_LARGEST, _FP16_LARGEST)  # keeps NaN
    share = (random & 0xFFFFFF).float().mul_(2.0**-24)
    subnormal = (held / _FP16_SMALLEST + share).floor_() * _FP16_SMALLEST
    rounded = torch.where(held.abs() < _FP16_SMALLEST_NORMAL, subnormal, _add_and_cut(held, random, 13))
    return torch.where(held.isnan(), held, rounded).to(dtype)


def _add_and_cut(values: Tensor, random: Tensor, bits: int) -> Tensor:
    """Adds random bits below the last that is kept, and clears them: a carry rounds away from zero."""
    below = (1 << bits) - 1
    return ((values.view(torch.int32) + (random & below)) & ~below).view(torch.float32)
