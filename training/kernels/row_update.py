"""Combines the backward pass of a lookup with the optimizer step: sums gradients by row and updates rows.

The kernels create no sparse gradient and no matrix with the gradients of distinct rows. The lookups are
sorted by the table row that they read. Consecutive lookups of the same row form a run, whose gradients are
summed in the sorted order. Each row's weight and accumulator are read and written once. Sums are computed in
float32, in an order that depends only on the batch, so results are deterministic.

Runs can be long: an id of a small feature occurs thousands of times in a batch. So the sorted lookups are
divided into chunks of 32. A program (an instance of the kernel) of `_add_up` sums one chunk. If a run lies
completely within the chunk, the program updates the run's row. If a run continues over several chunks, the
program stores the sum over its own chunk. `_finish` then adds these partial sums in their order, and updates
the row.

The formula of row-wise Adagrad is in training/optimizers/updates.py. Without an accumulator, the
optimizer is SGD.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton determines the types of kernel parameters)

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from training.device import on_device_of
from training.kernels.tail import Tail

_CHUNK = 32
_PARTS = 16


@torch.no_grad()
def update_rows(
    weight: Tensor,
    accumulator: Tensor | None,
    rows: Tensor,
    gradient: Tensor,
    rate: float,
    *,
    sources: Tensor | None = None,
    scales: Tensor | None = None,
    names: Tensor | None = None,
    epsilon: float = 1e-8,
    seed: int = 0,
    step: int = 0,
    tail: Tail | None = None,
    order_by: Tensor | None = None,
) -> None:
    """Sums the gradients of each row, and updates the rows in place by row-wise Adagrad or SGD.

    Args:
        weight: (R, E) float32, bfloat16 or float16; 16-bit weights are rounded stochastically.
        accumulator: (R,) float32, the state of row-wise Adagrad; None for SGD.
        rows: (N,) int64, the indices of the rows that were looked up, in any order, with repeats. Negative
            indices are skipped.
        gradient: (M, E), the gradients of the looked-up vectors, of any floating-point dtype.
        rate: the learning rate.
        sources: (N,) int64, the index of the row of `gradient` that belongs to each lookup. None means that
            lookup n uses row n.
        scales: (N,) float32, a factor for each lookup's row of `gradient`; None means that all factors are 1.
        names: (N,) int64, for each lookup, the number that identifies its row when random bits for the
            rounding are computed; None means the index of the row.
        epsilon: the epsilon of row-wise Adagrad.
        seed, step: the seed, and the step of the training run. Together with row and column, they determine
            the random bits of the rounding.
        tail: the rows of the table that are not in `weight`, and their accumulators; None if there are none.
        order_by: (N,) int64, the number by which each lookup is sorted before the gradients of each row are
            summed; the order affects the rounding of these sums. Lookups of the same row must have the same
            number, and lookups of different rows must have different numbers. All numbers must be below the
            number of rows of the table. None means that lookups are sorted by `rows`.
    """
    lookups, dim = len(rows), weight.shape[1]
    if not lookups:
        return
    all_rows = weight.shape[0] if tail is None else tail.first + len(tail.rows)
    narrow = all_rows < 2**31  # sorting 32-bit numbers takes less time than 64-bit numbers
    sorted_by = rows if order_by is None else order_by
    ordered, order = torch.sort(sorted_by.to(torch.int32) if narrow else sorted_by, stable=True)
    ordered = ordered if order_by is None else rows[order]
    origin = order if sources is None else sources[order]
    chunks = triton.cdiv(lookups, _CHUNK)
    parts = torch.empty(chunks, 2, dim, dtype=torch.float32, device=weight.device)
    mantissa, lowest = grid_of(weight.dtype)
    named = names is not None and mantissa != 0
    ordered_names = names[order] if named and names is not None else ordered
    pools = _pools(weight, accumulator, tail)
    target = (*pools, rate, epsilon, seed, step)
    compiled: dict[str, Any] = {
        "DIM": dim,
        "ADAGRAD": accumulator is not None,
        "NAMED": named,
        "TIERED": tail is not None,
        "MANTISSA": mantissa,
        "LOWEST": lowest,
        "BLOCK": triton.next_power_of_2(dim),
        "CHUNK": _CHUNK,
        "num_warps": 1 if dim <= 256 else 4,
    }
    scaled = gradient if scales is None else scales[order]
    inputs = (ordered, ordered_names, origin, gradient.contiguous(), scaled, parts, lookups)
    with on_device_of(weight):
        _add_up[(chunks,)](*inputs, *target, SCALED=scales is not None, **compiled)
        _finish[(chunks,)](ordered, ordered_names, parts, lookups, *target, PARTS=_PARTS, **compiled)


def _pools(
    weight: Tensor, accumulator: Tensor | None, tail: Tail | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """Returns weight and accumulator on the device, weight and accumulator in host memory, and `Tail.first`.

    A tensor that does not exist is replaced by another tensor, which the kernel does not use.
    """
    sums = weight if accumulator is None else accumulator
    if tail is None:
        return weight, sums, weight, sums, 0
    return weight, sums, tail.rows, tail.rows if tail.accumulator is None else tail.accumulator, tail.first


# This function is longer than our limit of 60 lines, because the arguments of this kernel take twenty lines.
@triton.jit(do_not_specialize=["lookups", "first_tail", "seed", "step"])
def _add_up(
    rows,
    names,
    origin,
    gradient,
    scales,
    parts,
    lookups,
    weight,
    accumulator,
    tail,
    tail_accumulator,
    first_tail: tl.int64,
    rate,
    epsilon,
    seed: tl.int64,
    step: tl.int64,
    SCALED: tl.constexpr,
    DIM: tl.constexpr,
    ADAGRAD: tl.constexpr,
    NAMED: tl.constexpr,
    TIERED: tl.constexpr,
    MANTISSA: tl.constexpr,
    LOWEST: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Sums the gradients of each run in a chunk of the sorted lookups, and updates the rows of complete runs.

    A run consists of consecutive lookups of the same row. The sum of a run that begins before the chunk is
    stored in `parts[chunk, 0]`. The sum of a run that begins in the chunk and continues after it is stored in
    `parts[chunk, 1]`.
    """
    chunk = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    begin = chunk * CHUNK
    end = tl.minimum(begin + CHUNK, lookups)
    before = tl.load(rows + begin - 1, mask=begin > 0, other=-2)
    row = tl.load(rows + begin)
    total = tl.full((BLOCK,), 0.0, tl.float32)
    for index in range(begin, end):
        source = tl.load(origin + index)
        values = tl.load(gradient + source * DIM + column, mask=column < DIM, other=0.0).to(tl.float32)
        if SCALED:
            values = values * tl.load(scales + index)
        total += values
        following = tl.load(rows + index + 1, mask=index + 1 < lookups, other=-2)
        if (following != row) | (index + 1 == end):
            continues = following == row
            if row >= 0:
                if row == before:
                    tl.store(parts + chunk * 2 * DIM + column, total, mask=column < DIM)
                elif continues:
                    tl.store(parts + (chunk * 2 + 1) * DIM + column, total, mask=column < DIM)
                else:
                    name = row
                    if NAMED:
                        name = tl.load(names + index)
                    apply(
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
                        DIM,
                        ADAGRAD,
                        TIERED,
                        MANTISSA,
                        LOWEST,
                        BLOCK,
                    )
            total = tl.full((BLOCK,), 0.0, tl.float32)
            row = following


@triton.jit(do_not_specialize=["lookups", "first_tail", "seed", "step"])
def _finish(
    rows,
    names,
    parts,
    lookups,
    weight,
    accumulator,
    tail,
    tail_accumulator,
    first_tail: tl.int64,
    rate,
    epsilon,
    seed: tl.int64,
    step: tl.int64,
    DIM: tl.constexpr,
    ADAGRAD: tl.constexpr,
    NAMED: tl.constexpr,
    TIERED: tl.constexpr,
    MANTISSA: tl.constexpr,
    LOWEST: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Adds the partial sums of a run that continues over several chunks, and updates the run's row.

    A program (an instance of the kernel) updates the row of the run that begins in its chunk. The program
    adds the partial sums of PARTS chunks at a time.
    """
    chunk = tl.program_id(0).to(tl.int64)
    begin, end = chunk * CHUNK, (chunk + 1) * CHUNK
    following = tl.load(rows + end, mask=end < lookups, other=-2)
    row = tl.load(rows + tl.minimum(end, lookups) - 1)
    before = tl.load(rows + begin - 1, mask=begin > 0, other=-2)
    if (row >= 0) & (following == row) & (before != row):
        column = tl.arange(0, BLOCK)
        inside = column < DIM
        total = tl.load(parts + (chunk * 2 + 1) * DIM + column, mask=inside, other=0.0)
        later = chunk + 1 + tl.arange(0, PARTS)
        remains = PARTS
        while remains == PARTS:
            first = later * CHUNK
            same = tl.load(rows + first, mask=first < lookups, other=-2) == row
            mask = same[:, None] & inside[None, :]
            more = tl.load(parts + later[:, None] * 2 * DIM + column[None, :], mask=mask, other=0.0)
            total += tl.reduce(more, 0, tl.standard._sum_combine)
            remains = tl.reduce(same.to(tl.int32), 0, tl.standard._sum_combine)
            later += PARTS
        name = row
        if NAMED:
            name = tl.load(names + end)
        apply(
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
            DIM,
            ADAGRAD,
            TIERED,
            MANTISSA,
            LOWEST,
            BLOCK,
        )


# The code below does the optimizer step of one row. Triton kernels call it.
#
# The formula of row-wise Adagrad is in training/optimizers/updates.py. Without an accumulator, the
# optimizer is SGD. A row is in the device's memory, or in pinned host memory (tail.py).


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

    The random bits of the rounding are computed from `name`, the number of the row.
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


# The code below rounds float32 numbers stochastically to a 16-bit format. Triton kernels call it.
#
# A number becomes one of its two neighbours in the 16-bit format, at random, so that the expected value of
# the result is the number itself. Rounding to the nearest neighbour would lose every update that is smaller
# than half the distance between two neighbours.
#
# The random bits come from Philox-4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3",
# SC). The random bits are a function of seed, step, row and column, so the order in which the programs
# (instances of a kernel) run does not change them.

# For each 16-bit dtype, the number of mantissa bits and the lowest exponent; see `grid_of`.
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
