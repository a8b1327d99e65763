"""The compiled transposition of columns to rows (transpose.cpp). training/data/transpose.py calls it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.native.library import required_library
from training.native.shard_rows import PoolMemory, ShardRows


def target_rows(
    rows: int, order: NDArray[np.int64] | None, shard_rows: int, batch_rows: int, first: int
) -> NDArray[np.int64]:
    """Computes `training.data.transpose.target_rows` in compiled code."""
    targets = np.empty(rows, dtype=np.int64)
    order_address = None if order is None else order.ctypes.data
    required_library().nightrank_target_rows(
        rows, order_address, shard_rows, batch_rows, first, targets.ctypes.data
    )
    return targets


class CompiledTransposer:
    """A `training.data.transpose.Transposer`. The compiled code releases Python's global interpreter lock.

    Args:
        columns: as for `transposer_of`.
        block_rows: number of rows of a block.

    Raises:
        ValueError: the dtype of a column does not have 4 bytes.
    """

    def __init__(self, columns: Sequence[NDArray[Any]], block_rows: int) -> None:
        if any(column.itemsize != 4 for column in columns):
            dtypes = [str(column.dtype) for column in columns]
            raise ValueError(f"columns have dtypes {dtypes}: only dtypes of 4 bytes are supported")
        self._block_rows = block_rows
        self._columns = [np.ascontiguousarray(column) for column in columns]
        self._singles = sum(column.ndim == 1 for column in columns)
        self._lengths = np.array([column.shape[1] for column in columns[self._singles :]], dtype=np.int64)
        self._addresses = np.array([column.ctypes.data for column in self._columns], dtype=np.int64)
        self._row_bytes = np.array([column.strides[0] for column in self._columns], dtype=np.int64)

    @property
    def structure(self) -> tuple[int, ...]:
        """Returns the members of the structure `Columns` in transpose.cpp."""
        arrays = (self._addresses, self._lengths, self._row_bytes)
        return self._singles, len(self._lengths), *(array.ctypes.data for array in arrays)

    @property
    def block_rows(self) -> int:
        """Returns the number of rows of a block."""
        return self._block_rows

    def transpose(
        self,
        first: int,
        blocks: NDArray[np.int64] | None,
        rows: range,
        target_rows: NDArray[np.int64],
        into: NDArray[Any],
    ) -> None:
        """See `Transposer.transpose`."""
        addresses = self._addresses + first * self._row_bytes
        required_library().nightrank_transpose(
            self._singles,
            len(self._lengths),
            addresses.ctypes.data,
            self._lengths.ctypes.data,
            into.shape[1],
            None if blocks is None else blocks.ctypes.data,
            0 if blocks is None else len(blocks),
            self._block_rows,
            rows.start,
            rows.stop,
            target_rows.ctypes.data,
            into.ctypes.data,
        )


def write_pool(
    shards: Sequence[ShardRows[CompiledTransposer]], memory: PoolMemory, threads: int, block_rows: int
) -> None:
    """Does the same as `training.data.transpose.write_pool`, without the global interpreter lock."""
    groups: dict[int, int] = {}  # id of a row group's columns → its place in `columns`
    columns: list[tuple[int, ...]] = []
    ranges: list[tuple[int, ...]] = []
    for shard in shards:
        for rows in shard.ranges:
            if id(rows.columns) not in groups:
                groups[id(rows.columns)] = len(groups)
                columns += [of_kind.structure for of_kind in rows.columns]
            blocks = (0, 0) if rows.blocks is None else (rows.blocks.ctypes.data, len(rows.blocks))
            ranges.append((groups[id(rows.columns)], rows.first, *blocks, rows.rows.start, rows.rows.stop))
    ends = list(accumulate(len(shard.ranges) for shard in shards))
    of_shards = [
        (
            shard.num_rows,
            0 if shard.order is None else shard.order.ctypes.data,
            shard.first,
            end - len(shard.ranges),
            end,
        )
        for shard, end in zip(shards, ends, strict=True)
    ]
    tables = [np.array(table, dtype=np.int64) for table in (columns, ranges, of_shards)]
    pool = np.array(
        [
            *(table.ctypes.data for table in tables),
            *(len(shards), memory.shard_rows, memory.batch_rows, memory.steps, block_rows),
            *(target.ctypes.data for target in memory.targets),
            *(target.shape[1] for target in memory.targets),
            memory.weights.ctypes.data,
        ],
        dtype=np.int64,
    )
    required_library().nightrank_write_pool(pool.ctypes.data, threads)
