"""Fills buffer pools on the device.

The result is identical, bit by bit, to the pools of `pool_writer.PoolWriter`.
The columns of a row group are copied to the device once. A kernel on the device writes the rows of each pool
in the order of the batches. The device also compares the ids with their cardinalities. So the host does not
shuffle rows or transpose columns.

Notation: a row group has G rows and C = 1 + D + W columns: the label, D dense features, and W columns of ids.
A pool has N rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.data.batch import Pool
from training.data.columns import Columns
from training.data.pool_writer import HeldRowGroups, PoolContents, numpy_target_rows
from training.data.sharding import BLOCK_ROWS, RowRange
from training.device import side_stream

_ADDRESS_FIELDS = 8  # number of int64 fields that describe a range of rows to the Triton kernel


@dataclass(frozen=True)
class GroupColumns:
    """The columns of a row group in one matrix.

    Attributes:
        columns: (C, G) int32. Ids are stored as numbers; the float32 values of the label and the dense
            features are stored as their 32 bits. The matrix is pinned if it will be copied to a GPU.
    """

    columns: Tensor

    @classmethod
    def of(cls, columns: Columns, *, pinned: bool) -> GroupColumns:
        """Copies the columns of a row group to a matrix."""
        parts = [columns.label, *columns.dense, *columns.categorical]
        widths = [1 if part.ndim == 1 else part.shape[1] for part in parts]
        matrix = torch.empty(sum(widths), len(columns.label), dtype=torch.int32, pin_memory=pinned)
        values, first = matrix.numpy(), 0
        for part, width in zip(parts, widths, strict=True):
            values[first : first + width] = part.view(np.int32).reshape(len(part), width).T
            first += width
        return cls(matrix)

    @property
    def size_bytes(self) -> int:
        """Returns the size of the matrix in bytes."""
        return 4 * self.columns.numel()


class DevicePoolWriter:
    """Writes pools in the memory of a device. On a GPU, a separate stream writes them.

    Args:
        steps: number of batches in a pool.
        rows: number of rows in a batch.
        num_dense: number of dense features.
        cardinalities: the cardinalities of the leading columns of ids. Columns of ids after these are not
            checked.
        id_width: number of columns of ids.
        num_shards: number of this rank's shards.
        arriving: yields the columns of row groups, in the order that `HeldRowGroups` requires.
        device: the device.
        kernel: whether Triton's kernel writes the rows. If it is False, torch operators write them.
        refuse: called with the index of a row group in which an id is not below its cardinality. It raises
            the error.
    """

    def __init__(
        self,
        steps: int,
        rows: int,
        num_dense: int,
        cardinalities: Sequence[int],
        id_width: int,
        num_shards: int,
        arriving: Iterator[GroupColumns],
        device: torch.device,
        *,
        kernel: bool,
        refuse: Callable[[int], None],
    ) -> None:
        self._shape = (steps, rows, num_dense, id_width)
        self._num_shards = num_shards
        self._device = device
        self._kernel = kernel
        self._refuse = refuse
        self._is_gpu = device.type == "cuda"
        self._stream = side_stream(device, "loader")
        self._held = HeldRowGroups(arriving, self._hold, self._hold_blocks)
        with self._on_stream():
            self._largest = self._upload(np.array(cardinalities, np.int64)) - 1
        self._unchecked: list[tuple[int, Tensor]] = []
        self._in_order: tuple[list[int], Tensor] | None = None

    def write(self, contents: PoolContents) -> tuple[Pool, torch.cuda.Event | None]:
        """Returns a pool with the rows in `contents`, and on a GPU the event after which it is complete.

        The pool's unused rows and their weights are zero.

        Raises:
            DataError: an id is not below its cardinality.
        """
        with self._on_stream():
            self._held.load(contents)
            steps, rows, num_dense, id_width = self._shape
            size = steps * rows * (2 + num_dense + id_width)
            counts = [sum(part.stop - part.start for part in ranges) for ranges in contents.ranges]
            make = torch.empty if sum(counts) == steps * rows else torch.zeros
            pool = Pool.of(
                make(size, dtype=torch.int32, device=self._device), steps, rows, num_dense, id_width
            )
            self._write_rows(contents, self._targets(contents, counts), pool)
            wrong = self._wrong_groups()
            event = torch.cuda.Event() if self._stream else None
            if event:
                event.record(self._stream)
        self._require_right_ids(wrong, event)
        return pool, event

    def _on_stream(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream) if self._stream else nullcontext()

    def _upload(self, values: NDArray[np.generic]) -> Tensor:
        """Copies an array to the device. The copy may still be running on the current stream."""
        tensor = torch.from_numpy(values)
        return (tensor.pin_memory() if self._is_gpu else tensor).to(self._device, non_blocking=True)

    def _hold(self, group: int, arrived: GroupColumns) -> Tensor:
        columns = arrived.columns.to(self._device, non_blocking=True)
        first = 1 + self._shape[2]
        ids = columns[first : first + len(self._largest)]
        if ids.numel():
            outside = (ids.amax(dim=1) > self._largest) | (ids.amin(dim=1) < 0)
            self._unchecked.append((group, outside.any()))
        return columns

    def _hold_blocks(self, blocks: NDArray[np.int64] | None) -> Tensor | None:
        return None if blocks is None else self._upload(blocks.astype(np.int32))

    def _targets(self, contents: PoolContents, counts: list[int]) -> Tensor:
        """Returns the pool row to which each row of `contents` is written, (N,) int32."""
        rows = self._shape[1]
        shard_rows = rows // self._num_shards
        if self._in_order is None or self._in_order[0] != counts:
            parts = [
                numpy_target_rows(count, None, shard_rows, rows, shard * shard_rows)
                for shard, count in enumerate(counts)
            ]
            self._in_order = (counts, self._upload(np.concatenate(parts).astype(np.int32)))
        in_order = self._in_order[1]
        orders = [
            contents.order.window(shard, contents.window, count)
            for shard, count in zip(contents.shards, counts, strict=True)
        ]
        firsts = np.cumsum([0, *counts])
        shuffled = [order + first for order, first in zip(orders, firsts, strict=False) if order is not None]
        if not shuffled:
            return in_order
        targets = torch.empty_like(in_order)
        targets[self._upload(np.concatenate(shuffled).astype(np.int32))] = in_order
        return targets

    def _write_rows(self, contents: PoolContents, targets: Tensor, pool: Pool) -> None:
        ranges = [part for of_shard in contents.ranges for part in of_shard]
        if not ranges:  # the shards of this rank have no more rows, but those of another rank have
            return
        epoch = contents.order.epoch
        rows = pool.weights.numel()
        labels, weights = pool.labels.view(rows).view(torch.int32), pool.weights.view(rows)
        dense = pool.dense.view(torch.int32).view(rows, self._shape[2])
        ids = pool.categorical.view(rows, self._shape[3])
        if not self._kernel:
            self._write_by_operators(ranges, epoch, targets, (labels, dense, ids, weights))
            return
        from training.kernels.pool_rows import write_rows  # imports Triton

        table = np.empty((len(ranges), _ADDRESS_FIELDS), np.int64)
        tiles, place = [], 0
        for number, part in enumerate(ranges):
            columns, blocks = self._held.groups[part.piece.group], self._held.blocks[epoch, part.piece]
            of_blocks = (0, 0) if blocks is None else (blocks.data_ptr(), len(blocks))
            table[number] = (
                *(columns.data_ptr(), columns.shape[1], part.piece.start),
                *(*of_blocks, part.start, part.stop, place),
            )
            of_range = np.arange(part.start // BLOCK_ROWS, -(-part.stop // BLOCK_ROWS), dtype=np.int32)
            tiles.append(np.stack([np.full_like(of_range, number), of_range], axis=1))
            place += part.stop - part.start
        tables = (self._upload(table), self._upload(np.concatenate(tiles)), targets)
        write_rows(*tables, labels, dense, ids, weights, BLOCK_ROWS)

    def _write_by_operators(
        self, ranges: Sequence[RowRange], epoch: int, targets: Tensor, into: tuple[Tensor, ...]
    ) -> None:
        """Writes the rows to a pool with torch operators. The Triton kernel would give the same result."""
        labels, dense, ids, weights = into
        num_dense, place = self._shape[2], 0
        for part in ranges:
            columns, blocks = self._held.groups[part.piece.group], self._held.blocks[epoch, part.piece]
            rows = torch.arange(part.start, part.stop, device=self._device)
            if blocks is not None:
                ordered = rows < len(blocks) * BLOCK_ROWS
                block = (
                    blocks[(rows // BLOCK_ROWS).clamp(max=max(len(blocks) - 1, 0))] if len(blocks) else rows
                )
                rows = torch.where(ordered, block * BLOCK_ROWS + rows % BLOCK_ROWS, rows)
            values = columns[:, part.piece.start + rows]  # (C, rows of the range)
            target = targets[place : place + len(rows)]
            labels[target] = values[0]
            dense[target] = values[1 : 1 + num_dense].T
            ids[target] = values[1 + num_dense :].T
            weights[target] = 1.0
            place += len(rows)

    def _wrong_groups(self) -> tuple[list[int], Tensor] | None:
        """Returns the row groups that arrived since the last call, and whether each has an id out of range.

        The second result is a tensor in host memory. The copy to it may still be running on the current
        stream.
        """
        if not self._unchecked:
            return None
        groups = [group for group, _ in self._unchecked]
        flags = torch.stack([flag for _, flag in self._unchecked])
        self._unchecked = []
        on_host = torch.empty(len(groups), dtype=torch.bool, pin_memory=self._is_gpu)
        return groups, on_host.copy_(flags, non_blocking=True)

    def _require_right_ids(
        self, wrong: tuple[list[int], Tensor] | None, event: torch.cuda.Event | None
    ) -> None:
        if wrong is None:
            return
        if event:
            event.synchronize()
        groups, flags = wrong
        for group, is_wrong in zip(groups, flags.tolist(), strict=True):
            if is_wrong:
                self._refuse(group)
