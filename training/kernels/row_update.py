"""The backward of a lookup and the optimiser's step in one: gradients are added up by row and applied where the row lies.

No sparse gradient is built, nor one row of gradient for each distinct id: lookups are sorted by row, runs of equal rows are
added up in their sorted order and each row's weight and accumulator are read and written once. The sum of a row is taken in
float32, in an order that follows from the batch alone, by one program: results are deterministic.

A run may be long: an id of a small feature occurs thousands of times a batch. So the sorted lookups are cut into chunks of
32. `_add_up` walks one chunk a program: runs that lie within it are applied at once; of a run that crosses a chunk's border
each chunk's part is written down, and `_finish` adds the parts in their order and applies them.

Row-wise Adagrad's formula stands in training/optimizers/row_wise_adagrad.py; without an accumulator the step is plain SGD's.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton gives the parameters of kernels their types)

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from training.kernels.rounding import grid_of, philox, round_stochastic

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
    epsilon: float = 1e-8,
    seed: int = 0,
    step: int = 0,
) -> None:
    """Adds up the gradients of equal rows and applies them, in place: row-wise Adagrad, or SGD without an accumulator.

    Args:
        weight: (R, E) float32, bfloat16 or float16; 16-bit weights are rounded stochastically.
        accumulator: (R,) float32, or None.
        rows: (N,) int64 looked up, in any order, repeats and all; negative ones are left out.
        gradient: (M, E) of any floating dtype.
        sources: (N,) int64 the row of `gradient` that belongs to each lookup; None where N = M and they go in order.
        scales: (N,) float32 what that row is multiplied by; None for 1.
        seed, step: what the random bits of the rounding follow from.
    """
    lookups, dim = len(rows), weight.shape[1]
    if not lookups:
        return
    narrow = weight.shape[0] < 2**31  # keys of 32 bits sort twice as fast
    ordered, order = torch.sort(rows.to(torch.int32) if narrow else rows, stable=True)
    origin = order if sources is None else sources[order]
    chunks = triton.cdiv(lookups, _CHUNK)
    parts = torch.empty(chunks, 2, dim, dtype=torch.float32, device=weight.device)
    mantissa, lowest = grid_of(weight.dtype)
    target = (weight, weight if accumulator is None else accumulator, rate, epsilon, seed, step)
    compiled: dict[str, Any] = {
        "DIM": dim,
        "ADAGRAD": accumulator is not None,
        "MANTISSA": mantissa,
        "LOWEST": lowest,
        "BLOCK": triton.next_power_of_2(dim),
        "CHUNK": _CHUNK,
        "num_warps": 1 if dim <= 256 else 4,
    }
    scaled = gradient if scales is None else scales[order]
    inputs = (ordered, origin, gradient.contiguous(), scaled, parts, lookups)
    _add_up[(chunks,)](*inputs, *target, SCALED=scales is not None, **compiled)
    _finish[(chunks,)](ordered, parts, lookups, *target, PARTS=_PARTS, **compiled)


@triton.jit
def _apply(
    total,
    row,
    weight,
    accumulator,
    rate,
    epsilon,
    seed,
    step,
    DIM: tl.constexpr,
    ADAGRAD: tl.constexpr,
    MANTISSA: tl.constexpr,
    LOWEST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row's step by its whole gradient `total` (BLOCK,), zero past DIM."""
    place = tl.arange(0, BLOCK)
    row = row.to(tl.int64)
    scale = rate
    if ADAGRAD:
        square = tl.reduce(total * total, 0, tl.standard._sum_combine) / DIM
        square += tl.load(accumulator + row)
        tl.store(accumulator + row, square)
        scale = rate / (tl.sqrt(square) + epsilon)
    values = tl.load(weight + row * DIM + place, mask=place < DIM, other=0.0).to(tl.float32) - total * scale
    if MANTISSA:
        values = round_stochastic(values, philox(seed, step, row, place), MANTISSA, LOWEST)
    tl.store(weight + row * DIM + place, values.to(weight.dtype.element_ty), mask=place < DIM)


@triton.jit(do_not_specialize=["lookups", "seed", "step"])
def _add_up(
    rows,
    origin,
    gradient,
    scales,
    parts,
    lookups,
    weight,
    accumulator,
    rate,
    epsilon,
    seed: tl.int64,
    step: tl.int64,
    SCALED: tl.constexpr,
    DIM: tl.constexpr,
    ADAGRAD: tl.constexpr,
    MANTISSA: tl.constexpr,
    LOWEST: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """A chunk's runs. `parts[chunk, 0]` takes a run that began before the chunk, `[chunk, 1]` one that began in it and goes on."""
    chunk = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    begin = chunk * CHUNK
    end = tl.minimum(begin + CHUNK, lookups)
    before = tl.load(rows + begin - 1, mask=begin > 0, other=-2)
    row = tl.load(rows + begin)
    total = tl.full((BLOCK,), 0.0, tl.float32)
    for index in range(begin, end):
        source = tl.load(origin + index)
        values = tl.load(gradient + source * DIM + place, mask=place < DIM, other=0.0).to(tl.float32)
        if SCALED:
            values = values * tl.load(scales + index)
        total += values
        following = tl.load(rows + index + 1, mask=index + 1 < lookups, other=-2)
        if (following != row) | (index + 1 == end):
            goes_on = following == row
            if row >= 0:
                if row == before:
                    tl.store(parts + chunk * 2 * DIM + place, total, mask=place < DIM)
                elif goes_on:
                    tl.store(parts + (chunk * 2 + 1) * DIM + place, total, mask=place < DIM)
                else:
                    _apply(
                        total,
                        row,
                        weight,
                        accumulator,
                        rate,
                        epsilon,
                        seed,
                        step,
                        DIM,
                        ADAGRAD,
                        MANTISSA,
                        LOWEST,
                        BLOCK,
                    )
            total = tl.full((BLOCK,), 0.0, tl.float32)
            row = following


@triton.jit(do_not_specialize=["lookups", "seed", "step"])
def _finish(
    rows,
    parts,
    lookups,
    weight,
    accumulator,
    rate,
    epsilon,
    seed: tl.int64,
    step: tl.int64,
    DIM: tl.constexpr,
    ADAGRAD: tl.constexpr,
    MANTISSA: tl.constexpr,
    LOWEST: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    PARTS: tl.constexpr,
):
    """The run that begins in a chunk and goes on past it, if there is one: its parts are added, `PARTS` chunks at a time."""
    chunk = tl.program_id(0).to(tl.int64)
    begin, end = chunk * CHUNK, (chunk + 1) * CHUNK
    following = tl.load(rows + end, mask=end < lookups, other=-2)
    row = tl.load(rows + tl.minimum(end, lookups) - 1)
    before = tl.load(rows + begin - 1, mask=begin > 0, other=-2)
    if (row >= 0) & (following == row) & (before != row):
        place = tl.arange(0, BLOCK)
        inside = place < DIM
        total = tl.load(parts + (chunk * 2 + 1) * DIM + place, mask=inside, other=0.0)
        later = chunk + 1 + tl.arange(0, PARTS)
        remains = PARTS
        while remains == PARTS:
            first = later * CHUNK
            same = tl.load(rows + first, mask=first < lookups, other=-2) == row
            mask = same[:, None] & inside[None, :]
            each = tl.load(parts + later[:, None] * 2 * DIM + place[None, :], mask=mask, other=0.0)
            total += tl.reduce(each, 0, tl.standard._sum_combine)
            remains = tl.reduce(same.to(tl.int32), 0, tl.standard._sum_combine)
            later += PARTS
        _apply(
            total,
            row,
            weight,
            accumulator,
            rate,
            epsilon,
            seed,
            step,
            DIM,
            ADAGRAD,
            MANTISSA,
            LOWEST,
            BLOCK,
        )
