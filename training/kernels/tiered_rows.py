"""Kernels that read and write rows of a matrix in two memories: the device's, and pinned host memory.

The kernels read and write the pinned memory through its address, over the bus. Nothing is copied to the
device except the numbers of the rows.

Notation: N rows of the matrix, E numbers per row.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton determines the types of kernel parameters)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from training.device import on_device_of

_TILE = 1024


def take(hot: Tensor, tail: Tensor, first_tail: int, rows: Tensor) -> Tensor:
    """Returns rows (N, E) of a matrix that is partly on the device and partly in host memory.

    Args:
        hot: (H, E), the rows in the device's memory.
        tail: (T, E), the rows in host memory, with the dtype of `hot`.
        first_tail: the index of the first row of `tail` in the matrix.
        rows: (N,) int32 or int64, indices of rows.
    """
    out = torch.empty(len(rows), hot.shape[1], dtype=hot.dtype, device=rows.device)
    if out.numel():
        with on_device_of(hot):
            _move[_grid(out)](
                hot, tail, rows.contiguous(), out, len(rows), first_tail, WRITES=False, **_block(out)
            )
    return out


def put(hot: Tensor, tail: Tensor, first_tail: int, rows: Tensor, values: Tensor) -> None:
    """Sets distinct rows of a matrix, which is partly in host memory, to `values` (N, E). See `take`."""
    values = values.to(hot.dtype).contiguous()
    if values.numel():
        with on_device_of(hot):
            _move[_grid(values)](
                hot, tail, rows.contiguous(), values, len(rows), first_tail, WRITES=True, **_block(values)
            )


def _block(values: Tensor) -> dict[str, int]:
    width = triton.next_power_of_2(values.shape[1])
    return {"DIM": values.shape[1], "BLOCK": max(1, min(128, _TILE // width)), "BLOCK_DIM": width}


def _grid(values: Tensor) -> tuple[int]:
    return (triton.cdiv(len(values), _block(values)["BLOCK"]),)


@triton.jit(do_not_specialize=["count", "first_tail"])
def _move(
    hot,
    tail,
    rows,
    values,
    count,
    first_tail: tl.int64,
    WRITES: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """Copies rows from the matrix to `values`, or from `values` to the matrix if WRITES is true.

    Each program (an instance of the kernel) copies BLOCK rows.
    """
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    number = tl.arange(0, BLOCK_DIM)
    inside = index < count
    row = tl.load(rows + index, mask=inside, other=0).to(tl.int64)
    is_hot = row < first_tail
    mask = inside[:, None] & (number < DIM)[None, :]
    in_hot, in_tail = mask & is_hot[:, None], mask & (row >= first_tail)[:, None]
    hot_place = hot + row[:, None] * DIM + number[None, :]
    tail_place = tail + (row - first_tail)[:, None] * DIM + number[None, :]
    place = values + index[:, None] * DIM + number[None, :]
    if WRITES:
        moved = tl.load(place, mask=mask)
        tl.store(hot_place, moved, mask=in_hot)
        tl.store(tail_place, moved, mask=in_tail)
    else:
        moved = tl.load(hot_place, mask=in_hot)
        from_tail = tl.load(tail_place, mask=in_tail)
        tl.store(place, tl.where(is_hot[:, None], moved, from_tail), mask=mask)
