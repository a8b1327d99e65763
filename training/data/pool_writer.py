"""Writes the rows of a rank's shards to buffer pools, in the order of the batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Generic, Protocol, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from training.data.batch import Pool, Pools
from training.data.columns import Columns
from training.data.sharding import BLOCK_ROWS, Piece, RowOrder, RowRange
from training.native.library import library, required_library


@dataclass(frozen=True)
class PoolContents:
    """A description of the rows that one pool contains.

    Attributes:
        order: the row order of the epoch.
        window: the index of the pool within the epoch.
        shards: the rank's shards.
        ranges: for each shard, the ranges of the shard's rows that belong to this pool.
    """

    order: RowOrder
    window: int
    shards: Sequence[int]
    ranges: Sequence[Sequence[RowRange]]

    @property
    def groups(self) -> list[int]:
        """Returns the indices of the row groups that contain these rows, in the order of the ranges."""
        all_ranges = (rows for of_shard in self.ranges for rows in of_shard)
        return list(dict.fromkeys(rows.piece.group for rows in all_ranges))


Arriving = TypeVar("Arriving")
HeldGroup = TypeVar("HeldGroup")
HeldBlocks = TypeVar("HeldBlocks")


class HeldRowGroups(Generic[Arriving, HeldGroup, HeldBlocks]):
    """Holds the row groups that the current pool needs, and the order in which their blocks of rows are read.

    A row group stays in memory as long as consecutive pools need its rows.

    Args:
        arriving: yields, for each pool, the row groups that the previous pool did not need, in the order of
            `PoolContents.groups`.
        hold: converts the columns of a row group before they are stored in `groups`. Its arguments are the
            row group's index and the value that `arriving` yielded for the row group.
        hold_blocks: converts the order of the blocks of a piece (`sharding.Piece`) before it is stored in
            `blocks`.

    Attributes:
        groups: the row groups in memory, by their index.
        blocks: for each pair of epoch and piece, the order in which the piece's blocks are read.
    """

    def __init__(
        self,
        arriving: Iterator[Arriving],
        hold: Callable[[int, Arriving], HeldGroup],
        hold_blocks: Callable[[NDArray[np.int64] | None], HeldBlocks],
    ) -> None:
        self.groups: dict[int, HeldGroup] = {}
        self.blocks: dict[tuple[int, Piece], HeldBlocks] = {}
        self._arriving = arriving
        self._hold = hold
        self._hold_blocks = hold_blocks

    def load(self, contents: PoolContents) -> None:
        """Releases the row groups that this pool does not need, and adds those that it needs."""
        groups = contents.groups
        self.groups = {group: held for group, held in self.groups.items() if group in groups}
        for group in groups:
            if group not in self.groups:
                self.groups[group] = self._hold(group, next(self._arriving))
        epoch = contents.order.epoch
        pieces = {rows.piece for of_shard in contents.ranges for rows in of_shard}
        self.blocks = {
            (epoch, piece): self.blocks[epoch, piece]
            if (epoch, piece) in self.blocks
            else self._hold_blocks(contents.order.blocks(piece))
            for piece in pieces
        }


class PoolWriter:
    """Writes pools in host memory.

    Args:
        pools: creates and reuses pools. A pool contains S steps of L rows.
        num_shards: number of this rank's shards. Each shard has L / num_shards rows in a step.
        arriving: yields the columns of row groups, in the order that `HeldRowGroups` requires.
        threads: the largest number of shards that are written in parallel.
    """

    def __init__(self, pools: Pools, num_shards: int, arriving: Iterator[Columns], threads: int) -> None:
        self._pools = pools
        self._num_shards = num_shards
        self._threads = threads
        self._held = HeldRowGroups(arriving, _transposers_of, lambda blocks: blocks)

    def write(self, contents: PoolContents) -> Pool:
        """Returns a pool with the rows in `contents`. The pool's unused rows and their weights are zero."""
        self._held.load(contents)
        pool = self._pools.take()
        rows = self._pools.steps * self._pools.rows
        tensors = (pool.labels, pool.dense, pool.categorical)
        memory = PoolMemory(
            [tensor.view(rows, -1 if tensor.numel() else 0).numpy() for tensor in tensors],
            pool.weights.view(rows).numpy(),
            self._pools.steps,
            self._pools.rows // self._num_shards,
            self._pools.rows,
        )
        shards = [self._shard(contents, index, memory.shard_rows) for index in range(self._num_shards)]
        write_pool(shards, memory, self._threads)
        return pool

    def _shard(self, contents: PoolContents, index: int, shard_rows: int) -> ShardRows[Transposer]:
        ranges = [
            RangeRows(
                self._held.groups[rows.piece.group],
                rows.piece.start,
                self._held.blocks[contents.order.epoch, rows.piece],
                range(rows.start, rows.stop),
            )
            for rows in contents.ranges[index]
        ]
        num_rows = sum(len(rows.rows) for rows in ranges)
        order = contents.order.window(contents.shards[index], contents.window, num_rows)
        return ShardRows(ranges, order, index * shard_rows)


def _transposers_of(_: int, columns: Columns) -> tuple[Transposer, ...]:
    """Returns the objects that write a row group's label, dense features and ids to a pool."""
    kinds = ([columns.label], columns.dense, columns.categorical)
    return tuple(transposer_of(kind) for kind in kinds)


# The classes below describe the memory of one buffer pool, and the rows of a rank's shards to write there.
#
# Notation: S batches of a pool, L rows of this rank in a batch, D dense features, W columns of ids.

KindOfColumns = TypeVar("KindOfColumns")


@dataclass(frozen=True)
class RangeRows(Generic[KindOfColumns]):
    """Rows of a piece that are read one after the other. A piece is a range of rows of a row group.

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
    """The rows of one shard that a pool contains.

    Attributes:
        ranges: the rows, one range after the other.
        order: (rows,), a permutation. The shard's n-th row in the pool is row `order[n]` of the concatenated
            ranges. None keeps the order of the ranges.
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


# The code below writes the columns of row groups as shuffled rows to a buffer pool.
#
# This code uses NumPy. If the compiled library was built, the functions at the end of this file are used
# instead.

# Number of rows that are transposed at a time. 4096 rows of 40 columns fit into the cache of a core.
_CHUNK_ROWS = 4096


class Transposer(Protocol):
    """The columns of a row group that have the same dtype, and a method that writes their rows to a pool."""

    def transpose(
        self,
        first: int,
        blocks: NDArray[np.int64] | None,
        rows: range,
        target_rows: NDArray[np.int64],
        into: NDArray[Any],
    ) -> None:
        """Writes rows of a piece (a range of rows of the row group) to `into`.

        Args:
            first: the row of the row group where the piece begins.
            blocks: the order in which the piece's blocks of BLOCK_ROWS rows are read; None keeps their order.
            rows: the rows to write, as positions in the order that results from `blocks`.
            target_rows: (len(rows),), for each of `rows`, the row of `into` to which it is written.
            into: a contiguous matrix with the dtype of the columns and any number of rows.
        """


def transposer_of(columns: Sequence[NDArray[Any]]) -> Transposer:
    """Returns a transposer for columns of the same 4-byte dtype. The transposer is compiled if possible.

    Args:
        columns: first the columns with one number per row, shape (rows,); then the columns with lists, shape
            (rows, length).
    """
    if library():
        return CompiledTransposer(columns, BLOCK_ROWS)
    return NumpyTransposer(columns)


def write_pool(shards: Sequence[ShardRows[Transposer]], memory: PoolMemory, threads: int) -> None:
    """Writes the rows of all shards to a pool. If a shard has too few rows, the other rows become zero.

    The weights of these rows are zero too.

    Args:
        shards: the rank's shards. Their columns are results of `transposer_of`.
        memory: the memory of the pool.
        threads: the largest number of threads that compiled code may use.
    """
    compiled = [shard for shard in shards if _is_compiled(shard)]
    if library() and len(compiled) == len(shards):
        write_compiled_pool(compiled, memory, threads, BLOCK_ROWS)
        return
    for shard in shards:
        _write_shard(shard, memory)


def _is_compiled(shard: ShardRows[Any]) -> TypeGuard[ShardRows[CompiledTransposer]]:
    kinds = (of_kind for rows in shard.ranges for of_kind in rows.columns)
    return all(isinstance(of_kind, CompiledTransposer) for of_kind in kinds)


def _write_shard(shard: ShardRows[Transposer], memory: PoolMemory) -> None:
    places = (memory.shard_rows, memory.batch_rows, shard.first)
    targets_of_rows = target_rows(shard.num_rows, shard.order, *places)
    start = 0
    for rows in shard.ranges:
        part = targets_of_rows[start : start + len(rows.rows)]
        for of_kind, target in zip(rows.columns, memory.targets, strict=True):
            of_kind.transpose(rows.first, rows.blocks, rows.rows, part, target)
        start += len(rows.rows)
    memory.weights[targets_of_rows] = 1
    empty = target_rows(memory.steps * memory.shard_rows, None, *places)[shard.num_rows :]
    for target in (*memory.targets, memory.weights):
        target[empty] = 0


def target_rows(
    rows: int, order: NDArray[np.int64] | None, shard_rows: int, batch_rows: int, first: int
) -> NDArray[np.int64]:
    """Returns, for each row of a shard's window, the row of the pool to which it is written: (rows,).

    The window of a shard consists of the shard's rows in one pool.

    Args:
        rows: number of rows of the window.
        order: (rows,), a permutation of the window's rows: `order[n]` is the row that is written as the
            shard's n-th row of the pool. None keeps the order of the rows.
        shard_rows: number of rows of the shard in a batch.
        batch_rows: number of rows of a batch.
        first: the row of a batch where the shard's rows begin.
    """
    if library():
        return compiled_target_rows(rows, order, shard_rows, batch_rows, first)
    return numpy_target_rows(rows, order, shard_rows, batch_rows, first)


def numpy_target_rows(
    rows: int, order: NDArray[np.int64] | None, shard_rows: int, batch_rows: int, first: int
) -> NDArray[np.int64]:
    """Computes `target_rows`, the place in the pool of each row of a shard's window, with NumPy."""
    step, within = np.divmod(np.arange(rows, dtype=np.int64), shard_rows)
    in_order = step * batch_rows + first + within
    if order is None:
        return in_order
    targets = np.empty_like(in_order)
    targets[order] = in_order
    return targets


class NumpyTransposer:
    """A `Transposer` that uses NumPy."""

    def __init__(self, columns: Sequence[NDArray[Any]]) -> None:
        self._columns = columns

    def transpose(
        self,
        first: int,
        blocks: NDArray[np.int64] | None,
        rows: range,
        target_rows: NDArray[np.int64],
        into: NDArray[Any],
    ) -> None:
        """See `Transposer.transpose`."""
        start = rows.start
        for source_rows, skipped, count in _chunks(blocks, rows):
            chunk = np.empty((count, into.shape[1]), dtype=into.dtype)
            offset = 0
            for column in self._columns:
                values = _take(column[first:], source_rows)[skipped : skipped + count]
                width = 1 if column.ndim == 1 else column.shape[1]
                chunk[:, offset : offset + width] = values.reshape(count, width)
                offset += width
            into[target_rows[start - rows.start : start - rows.start + count]] = chunk
            start += count


def _chunks(
    blocks: NDArray[np.int64] | None, rows: range
) -> Iterator[tuple[NDArray[np.int64] | slice, int, int]]:
    """Divides `rows` into chunks.

    Yields three values for each chunk. The first selects rows of the piece, among them those of the chunk. It
    is an array of block numbers, or a slice of rows. The second is the position of the chunk's first row
    among the selected rows. The third is the number of rows of the chunk.
    """
    ordered = 0 if blocks is None else min(max(len(blocks) * BLOCK_ROWS, rows.start), rows.stop)
    start = rows.start
    while start < rows.stop:
        stop = min(start + _CHUNK_ROWS, ordered if start < ordered else rows.stop)
        if blocks is not None and start < ordered:
            source_blocks = blocks[start // BLOCK_ROWS : -(-stop // BLOCK_ROWS)]
            yield source_blocks, start % BLOCK_ROWS, stop - start
        else:
            yield slice(start, stop), 0, stop - start
        start = stop


def _take(column: NDArray[Any], source_rows: NDArray[np.int64] | slice) -> NDArray[Any]:
    """Returns a column's values in a slice of rows, or in some blocks of rows, concatenated."""
    if isinstance(source_rows, slice):
        return column[source_rows]
    whole = len(column) // BLOCK_ROWS * BLOCK_ROWS
    blocks = column[:whole].reshape(-1, BLOCK_ROWS, *column.shape[1:])  # (blocks, BLOCK_ROWS, …)
    return blocks.take(source_rows, axis=0).reshape(-1, *column.shape[1:])


# The code below calls compiled loops (training/native/transpose.cpp), which transpose the columns of row
# groups into rows.


def compiled_target_rows(
    rows: int, order: NDArray[np.int64] | None, shard_rows: int, batch_rows: int, first: int
) -> NDArray[np.int64]:
    """Computes `target_rows`, the place in the pool of each row of a shard's window, in compiled code."""
    targets = np.empty(rows, dtype=np.int64)
    order_address = None if order is None else order.ctypes.data
    required_library().nightrank_target_rows(
        rows, order_address, shard_rows, batch_rows, first, targets.ctypes.data
    )
    return targets


class CompiledTransposer:
    """A `Transposer`. The compiled code releases Python's global interpreter lock.

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


def write_compiled_pool(
    shards: Sequence[ShardRows[CompiledTransposer]], memory: PoolMemory, threads: int, block_rows: int
) -> None:
    """Writes a pool like `write_pool`, without the global interpreter lock."""
    groups: dict[int, int] = {}  # maps id(columns of a row group) to its number in `columns`
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
