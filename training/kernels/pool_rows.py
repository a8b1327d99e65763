"""A kernel that writes rows of row groups on the device to a buffer pool, in the order of the batches.

Each program (an instance of the kernel) reads a tile: some columns of a block of consecutive rows. It writes
each row's numbers to the row's position in the pool.

Notation: a row group has G rows and 1 + D + W columns: the label, D dense features, and W columns of ids.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton determines the types of kernel parameters)

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from training.device import on_device_of

_TILE_COLUMNS = 64
# With 4 warps, a tile of 32 rows and 64 columns does not fit into the registers of compute capability 9.0.
WARPS = 8


def write_rows(
    ranges: Tensor,
    tiles: Tensor,
    targets: Tensor,
    labels: Tensor,
    dense: Tensor,
    ids: Tensor,
    weights: Tensor,
    block_rows: int,
) -> None:
    """Writes rows of row groups to a pool of N rows, and sets the weights of the written rows to 1.

    Args:
        ranges: (R, 8) int64, eight numbers for each range of rows of a piece. A piece is a range of rows of a
            row group. The first two numbers describe the row group: the address of its columns (1 + D + W,
            G), which are 4-byte numbers, and G. The next three describe the piece: its first row, the address
            of the order (int32) in which its blocks are read, and the number of these blocks. The last three
            describe the range: its first position in the piece's row order, the position after its last row,
            and the index in `targets` of its first row.
        tiles: (T, 2) int32, for each tile, the index of its range, and the position of its block in the order
            of the piece's blocks.
        targets: (N,) int32, for each row of the ranges, one range after the other, its row in the pool.
        labels: (N,) int32, the bits of the labels.
        dense: (N, D) int32, the bits of the dense features.
        ids: (N, W) int32.
        weights: (N,) float32.
        block_rows: number of rows of a block, a power of 2.
    """
    num_dense, id_width = dense.shape[1], ids.shape[1]
    columns = tile_columns(num_dense, id_width)
    with on_device_of(labels):
        _write_rows[(len(tiles), triton.cdiv(1 + num_dense + id_width, columns))](
            ranges,
            tiles,
            targets,
            labels,
            dense,
            ids,
            weights,
            DENSE=num_dense,
            IDS=id_width,
            COLUMNS=columns,
            BLOCK=block_rows,
            num_warps=WARPS,
        )


def tile_columns(num_dense: int, id_width: int) -> int:
    """Returns the number of columns of a tile, the part of the pool that one kernel program writes."""
    return int(min(triton.next_power_of_2(1 + num_dense + id_width), _TILE_COLUMNS))


@triton.jit
def _write_rows(
    ranges,
    tiles,
    targets,
    labels,
    dense,
    ids,
    weights,
    DENSE: tl.constexpr,
    IDS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Writes one tile to the pool: some columns of one block of rows."""
    tile = tl.program_id(0)
    of_range = ranges + 8 * tl.load(tiles + 2 * tile).to(tl.int64)
    place = tl.load(tiles + 2 * tile + 1)
    columns = tl.load(of_range).to(tl.pointer_type(tl.int32))
    group_rows = tl.load(of_range + 1)
    first = tl.load(of_range + 2)
    blocks = tl.load(of_range + 3).to(tl.pointer_type(tl.int32))
    num_blocks = tl.load(of_range + 4)
    start = tl.load(of_range + 5)
    stop = tl.load(of_range + 6)
    offset = tl.load(of_range + 7)
    block = place.to(tl.int64)
    if place < num_blocks:
        block = tl.load(blocks + place).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    position = place.to(tl.int64) * BLOCK + lane
    inside = (position >= start) & (position < stop)
    row = first + block * BLOCK + lane
    target = tl.load(targets + offset + position - start, mask=inside, other=0).to(tl.int64)
    if tl.program_id(1) == 0:
        tl.store(weights + target, 1.0, mask=inside)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = inside[:, None] & (column < 1 + DENSE + IDS)[None, :]
    numbers = tl.load(columns + column[None, :] * group_rows + row[:, None], mask=mask)
    is_label = mask & (column == 0)[None, :]
    is_dense = mask & ((column >= 1) & (column <= DENSE))[None, :]
    is_id = mask & (column > DENSE)[None, :]
    tl.store(labels + target[:, None] + 0 * column[None, :], numbers, mask=is_label)
    tl.store(dense + target[:, None] * DENSE + (column[None, :] - 1), numbers, mask=is_dense)
    tl.store(ids + target[:, None] * IDS + (column[None, :] - 1 - DENSE), numbers, mask=is_id)
