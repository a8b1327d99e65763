"""The compiled transposition of columns to rows (transpose.cpp). training/data/pool_writer.py calls it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from training.native.library import required_library


def target_rows(
    rows: int, order: NDArray[np.int64] | None, shard_rows: int, batch_rows: int, first: int
) -> NDArray[np.int64]:
    """Computes `training.data.pool_writer.target_rows` in compiled code."""
    targets = np.empty(rows, dtype=np.int64)
    order_address = None if order is None else order.ctypes.data
    required_library().nightrank_target_rows(
        rows, order_address, shard_rows, batch_rows, first, targets.ctypes.data
    )
    return targets


class CompiledTransposer:
    """A `training.data.pool_writer.Transposer`. The compiled code releases Python's global interpreter lock.

    Args:
        columns: see `transposer_of`.
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
    """Writes a pool like `training.data.pool_writer.write_pool`, without the global interpreter lock."""
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


# Structures for the compiled loops. They describe the memory of one buffer pool, and its rows, which come
# from a rank's shards.
#
# Notation: S batches of a pool, L rows of this rank in a batch, D dense features, W columns of ids.

KindOfColumns = TypeVar("KindOfColumns")


@dataclass(frozen=True)
class RangeRows(Generic[KindOfColumns]):
    """Neighbouring rows in the order of a piece, which is a range of rows of a row group.

    Attributes:
        columns: the columns of the row group: the label, the dense features, and the ids.
        first: the row of the row group where the piece begins.
        blocks: the order in which the piece's blocks of BLOCK_ROWS rows are read; None keeps their order.
        rows: the rows, as positions in the order that results from `blocks`.
    """

    columns: tuple[KindOfColumns, ...]
    first: int
    blocks: NDArray[np.int64] | None
    rows: range


@dataclass(frozen=True)
class ShardRows(Generic[KindOfColumns]):
    """The rows of one shard.

    Attributes:
        ranges: the rows, one range after the other.
        order: (rows,), a permutation: the shard's n-th row of the pool is row `order[n]` of the ranges. None
            keeps the order of the ranges.
        first: the row of a batch where the shard's rows begin.
    """

    ranges: Sequence[RangeRows[KindOfColumns]]
    order: NDArray[np.int64] | None
    first: int

    @property
    def num_rows(self) -> int:
        """Returns the number of rows."""
        return sum(len(rows.rows) for rows in self.ranges)


@dataclass(frozen=True)
class PoolMemory:
    """The arrays of a pool.

    Attributes:
        targets: the labels (S * L, 1) float32, the dense features (S * L, D) float32, and the ids (S * L, W)
            int32. A matrix without columns has the shape (S * L, 0).
        weights: (S * L,) float32.
        steps: S.
        shard_rows: number of rows of each shard in a batch.
        batch_rows: L.
    """

    targets: Sequence[NDArray[Any]]
    weights: NDArray[np.float32]
    steps: int
    shard_rows: int
    batch_rows: int
