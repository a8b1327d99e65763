"""One kernel that looks up the vectors of all ids of a batch, pools lists, and casts the result.

As in `StackedEmbedding.forward`, PAD_ID in a list is ignored in the sum and in the mean, and an empty list
gives zeros. The kernel replaces three operations of that method: adding the features' offsets to the ids, the
gather, and the cast. So the temporary tensors of these operations are not needed. If the table is int8, the
kernel also multiplies each row by its scale.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton determines the types of kernel parameters)

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
from training.device import on_device_of
from training.kernels.tail import Tail

# One program (an instance of the kernel) gathers at most this many numbers. With 4,096 numbers, the kernel
# for lists would need more than 255 registers per thread, and would store some values in memory
# (tests/training/test_compiled_kernels.py).
_TILE = 1024


@dataclass(frozen=True)
class FeaturePositions:
    """The position of C features: their columns in a batch, and their rows in the table.

    Attributes:
        first_row: (C,) int64, the table row that holds id 0 of each feature.
        column, width: (C,) int32, the first column of ids of each feature, and the number of its columns.
        lists_from: index of the first list feature; all later features are list features too.
        longest: the largest number of columns of a feature.
        mean: True if the vectors of a list are pooled by their mean, False for their sum.
    """

    first_row: Tensor
    column: Tensor
    width: Tensor
    lists_from: int
    longest: int
    mean: bool

    @classmethod
    def of(cls, first_row: Tensor, list_lengths: Sequence[int], mean: bool) -> FeaturePositions:
        """Returns the id columns of a table's features; the last are lists of `list_lengths` columns."""
        single = len(first_row) - len(list_lengths)
        widths = (*[1] * single, *list_lengths)
        column, width = _columns(widths, first_row.device)
        return cls(first_row, column, width, single, max(widths, default=1), mean)


@cache
@torch.inference_mode(False)  # the cached tensors are also used in training, which refuses inference tensors
def _columns(widths: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns `column` and `width` of `FeaturePositions`.

    The results are cached, because a copy to a GPU makes the host wait for the GPU.
    """
    starts = [0, *accumulate(widths)][:-1]
    return (
        torch.tensor(starts, dtype=torch.int32, device=device),
        torch.tensor(widths, dtype=torch.int32, device=device),
    )


def gather(
    weight: Tensor,
    ids: Tensor,
    features: FeaturePositions,
    dtype: torch.dtype,
    *,
    scales: Tensor | None = None,
    out: Tensor | None = None,
    tail: Tail | None = None,
) -> Tensor:
    """Returns the vectors of ids, shape (B, C, E), in `dtype`.

    Args:
        weight: (R, E), any floating-point dtype, or int8.
        ids: (B, W) int32 or int64.
        features: the columns of ids.
        dtype: the dtype of the result. Sums are computed in float32.
        scales: (R,) float32, a factor for each row; None means that all factors are 1.
        out: memory for the result. It is used if it has the result's shape and dtype.
        tail: the rows of the table that are not in `weight`; None if there are none.
    """
    batch_rows, columns = ids.shape
    num_features, dim = len(features.first_row), weight.shape[1]
    if out is None or out.shape != (batch_rows, num_features, dim) or out.dtype != dtype:
        out = torch.empty(batch_rows, num_features, dim, dtype=dtype, device=weight.device)
    vectors = batch_rows * num_features
    if out.numel() == 0:
        return out
    block = block_of(dim, tiered=tail is not None)
    with on_device_of(weight):
        _gather[(triton.cdiv(vectors, block),)](
            weight,
            weight if scales is None else scales,
            weight if tail is None else tail.rows,
            0 if tail is None else tail.first,
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
            SCALED=scales is not None,
            TIERED=tail is not None,
            DIM=dim,
            LONGEST=features.longest,
            MEAN=features.mean,
            BLOCK=block,
            BLOCK_DIM=triton.next_power_of_2(dim),
        )
    return out


def block_of(dim: int, *, tiered: bool = False) -> int:
    """Returns how many vectors of `dim` numbers one program gathers.

    Rows in two memories need more registers, so programs that read both gather half as many vectors.
    """
    return max(1, min(128, _TILE // triton.next_power_of_2(dim)) // (2 if tiered else 1))


@triton.jit(do_not_specialize=["first_tail"])
def _gather(
    weight,
    scales,
    tail,
    first_tail: tl.int64,
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
    SCALED: tl.constexpr,
    TIERED: tl.constexpr,
    DIM: tl.constexpr,
    LONGEST: tl.constexpr,
    MEAN: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """Computes one tile (BLOCK, BLOCK_DIM) of the result in each program (an instance of the kernel).

    Vector v is the vector of feature v % C in row v // C of the batch.
    """
    # Positions in `ids` and `out` are int64. Only the number of the tile's first vector is divided in int64.
    # All other divisions are relative to this vector and use int32, which takes much less time.
    first_vector = tl.program_id(0).to(tl.int64) * BLOCK
    first_batch_row = first_vector // num_features
    place = (first_vector - first_batch_row * num_features).to(tl.int32) + tl.arange(0, BLOCK)
    vector = first_vector + tl.arange(0, BLOCK)
    number = tl.arange(0, BLOCK_DIM)
    inside = vector < vectors
    feature = place % num_features
    start = tl.load(first_row + feature, mask=inside, other=0)
    batch_row = first_batch_row + place // num_features
    first = batch_row * columns + tl.load(column + feature, mask=inside, other=0)
    length = tl.load(width + feature, mask=inside, other=0)
    total = tl.full((BLOCK, BLOCK_DIM), 0.0, tl.float32)
    count = tl.full((BLOCK,), 0.0, tl.float32)
    for index in range(LONGEST):
        has = inside & (index < length)
        id_ = tl.load(ids + first + index, mask=has, other=0)
        has = has & ((feature < lists_from) | (id_ != PAD))
        row = start + id_
        mask = has[:, None] & (number < DIM)[None, :]
        if TIERED:
            is_hot = (row < first_tail)[:, None]
            in_device = weight + row[:, None] * DIM + number[None, :]
            in_host = tail + (row - first_tail)[:, None] * DIM + number[None, :]
            of_tail = tl.load(in_host, mask=mask & (row >= first_tail)[:, None], other=0)
            values = tl.where(is_hot, tl.load(in_device, mask=mask & is_hot, other=0), of_tail).to(tl.float32)
        else:
            values = tl.load(weight + row[:, None] * DIM + number[None, :], mask=mask, other=0).to(tl.float32)
        if SCALED:
            values = values * tl.load(scales + row, mask=has, other=0.0)[:, None]
        total += values
        count += has.to(tl.float32)
    if MEAN:
        total = total / tl.where(count > 1.0, count, 1.0)[:, None]
    mask = inside[:, None] & (number < DIM)[None, :]
    target = out + vector[:, None] * DIM + number[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=mask)
