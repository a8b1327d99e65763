"""The optimizer step of one row, for use in Triton kernels.

The formula of row-wise Adagrad is in training/optimizers/row_wise_adagrad.py. Without an accumulator, the
optimizer is SGD. A row is in the device's memory, or in pinned host memory (tail.py).
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton determines the types of kernel parameters)

from __future__ import annotations

import triton
import triton.language as tl

from training.kernels.rounding import philox, round_stochastic


@triton.jit
def apply(
    total,
    row,
    name,
    weight,
    accumulator,
    tail,
    tail_accumulator,
    first_tail,
    rate,
    epsilon,
    seed,
    step,
    DIM: tl.constexpr,
    ADAGRAD: tl.constexpr,
    TIERED: tl.constexpr,
    MANTISSA: tl.constexpr,
    LOWEST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Updates one row by its summed gradient `total` (BLOCK,), which is zero from column DIM on.

    `name` stands for the row in the random bits of the rounding.
    """
    column = tl.arange(0, BLOCK)
    row = row.to(tl.int64)
    numbers = weight + row * DIM
    state = accumulator + row
    if TIERED:  # noqa: SIM102 (Triton compiles the inner condition only if TIERED is true)
        if row >= first_tail:
            numbers = tail + (row - first_tail) * DIM
            state = tail_accumulator + (row - first_tail)
    scale = rate
    if ADAGRAD:
        square = tl.reduce(total * total, 0, tl.standard._sum_combine) / DIM
        square += tl.load(state)
        tl.store(state, square)
        scale = rate / (tl.sqrt(square) + epsilon)
    values = tl.load(numbers + column, mask=column < DIM, other=0.0).to(tl.float32) - total * scale
    if MANTISSA:
        values = round_stochastic(values, philox(seed, step, name.to(tl.int64), column), MANTISSA, LOWEST)
    tl.store(numbers + column, values.to(weight.dtype.element_ty), mask=column < DIM)
