"""One gather over all stacked tables: ids in, vectors out in the dtype of the computation, lists pooled on the way.

Of a list PAD_ID is left out, of the sum and of the mean's count, and an empty list gives zeros, as in
`StackedEmbedding.forward`, whose three operations and their temporaries (ids + offsets, the gather, the cast) this replaces.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton gives the parameters of kernels their types)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from storage.feature_spec import PAD_ID

# Numbers that one program gathers: as many rows as make a tile of this size.
_TILE = 4096


@dataclass(frozen=True)
class Features:
    """Where the ids of C features stand in a batch, and their rows in the table.

    Attributes:
        first_row: (C,) int64 the table's row of each feature's id 0.
        column, width: (C,) int32 the first of a feature's columns of ids, and how many there are.
        lists_from: the first feature that is a list; all from it on are.
        longest: the largest width.
        mean: lists are pooled by their mean, else by their sum.
    """

    first_row: Tensor
    column: Tensor
    width: Tensor
    lists_from: int
    longest: int
    mean: bool

    @classmethod
    def of(cls, first_row: Tensor, list_lengths: Sequence[int], mean: bool) -> Features:
        """Of features of one id each, but for the last ones, which are lists of these lengths."""
        single = len(first_row) - len(list_lengths)
        widths = (*[1] * single, *list_lengths)
        column, width = _columns(widths, first_row.device)
        return cls(first_row, column, width, single, max(widths, default=1), mean)


@cache
@torch.inference_mode(False)  # kept: what comes first may be scoring, whose tensors no training can use
def _columns(widths: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """`column` and `width` of `Features`; copied to the device once, for a copy would wait for it at every step."""
    starts = [0, *accumulate(widths)][:-1]
    return (
        torch.tensor(starts, dtype=torch.int32, device=device),
        torch.tensor(widths, dtype=torch.int32, device=device),
    )


def gather(weight: Tensor, ids: Tensor, features: Features, dtype: torch.dtype) -> Tensor:
    """Vectors (B, C, E) of ids (B, W) int32 or int64 in `dtype`, from weight (R, E) of any floating dtype; sums are float32."""
    batch_rows, columns = ids.shape
    num_features, dim = len(features.first_row), weight.shape[1]
    out = torch.empty(batch_rows, num_features, dim, dtype=dtype, device=weight.device)
    vectors = batch_rows * num_features
    if out.numel() == 0:
        return out
    block_dim = triton.next_power_of_2(dim)
    block = max(1, min(128, _TILE // block_dim))
    _gather[(triton.cdiv(vectors, block),)](
        weight,
        ids.contiguous(),
        features.first_row,
        features.column,
        features.width,
        out,
        vectors,
        columns,
        num_features,
        features.lists_from,
        PAD=PAD_ID,
        DIM=dim,
        LONGEST=features.longest,
        MEAN=features.mean,
        BLOCK=block,
        BLOCK_DIM=block_dim,
    )
    return out


@triton.jit
def _gather(
    weight,
    ids,
    first_row,
    column,
    width,
    out,
    vectors,
    columns,
    num_features,
    lists_from,
    PAD: tl.constexpr,
    DIM: tl.constexpr,
    LONGEST: tl.constexpr,
    MEAN: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """A tile of vectors (BLOCK, BLOCK_DIM); vector v is feature v % C of the batch's row v // C."""
    vector = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.arange(0, BLOCK_DIM)
    inside = vector < vectors
    feature = vector % num_features
    start = tl.load(first_row + feature, mask=inside, other=0)
    first = (vector // num_features) * columns + tl.load(column + feature, mask=inside, other=0)
    ids_here = tl.load(width + feature, mask=inside, other=0)
    total = tl.full((BLOCK, BLOCK_DIM), 0.0, tl.float32)
    count = tl.full((BLOCK,), 0.0, tl.float32)
    for index in range(LONGEST):
        has = inside & (index < ids_here)
        each = tl.load(ids + first + index, mask=has, other=0)
        has = has & ((feature < lists_from) | (each != PAD))
        row = start + each
        mask = has[:, None] & (place < DIM)[None, :]
        total += tl.load(weight + row[:, None] * DIM + place[None, :], mask=mask, other=0.0).to(tl.float32)
        count += has.to(tl.float32)
    if MEAN:
        total = total / tl.where(count > 1.0, count, 1.0)[:, None]
    mask = inside[:, None] & (place < DIM)[None, :]
    target = out + vector.to(tl.int64)[:, None] * DIM + place[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=mask)
