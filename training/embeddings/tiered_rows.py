"""Table rows in two memories: the frequent rows on the device, the others in host memory.

The rows in host memory are never copied to the device as a whole. If Triton's kernels are used, they read and
write single rows through the address of the host memory, which is pinned. Otherwise the CPU does this, and a
GPU waits for it. If the device is the CPU, both memories are tensors on the CPU.

Notation: N rows of a matrix, E numbers per row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from training import kernels
from training.embeddings.rows import RowBlock
from training.kernels.tail import Tail


class TieredRows:
    """A matrix whose first rows are on the device, and whose other rows are in host memory.

    It has the methods of a tensor that lookups and optimizers use.

    Args:
        hot: (H, …), the rows on the device.
        tail: (T, …), the other rows, in host memory, with the dtype of `hot`.
        first_tail: the index of the first row of `tail` in the matrix, at least H. Rows from H to
            `first_tail` do not exist.
        by_kernel: whether Triton's kernels read and write rows.
    """

    def __init__(self, hot: Tensor, tail: Tensor, first_tail: int, *, by_kernel: bool) -> None:
        self.hot, self.tail, self.first_tail = hot, tail, first_tail
        self._by_kernel = by_kernel

    @property
    def shape(self) -> torch.Size:
        """Returns the number of rows, and then the shape of a row."""
        return torch.Size((len(self.hot) + len(self.tail), *self.hot.shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        """Returns the dtype of both memories."""
        return self.hot.dtype

    @property
    def device(self) -> torch.device:
        """Returns the device of the frequent rows."""
        return self.hot.device

    def of_kernels(self, accumulator: TieredRows | None = None) -> Tail:
        """Returns the rows in host memory, and those of their accumulators, as the kernels take them."""
        return Tail(self.tail, self.first_tail, None if accumulator is None else accumulator.tail)

    def index_select(self, dim: int, rows: Tensor) -> Tensor:
        """Returns the rows with the indices `rows` (N,) on the device, as torch's method for `dim` = 0."""
        if self._by_kernel:
            taken = kernels.take(_flat(self.hot), _flat(self.tail), self.first_tail, rows)
            return taken.view(len(rows), *self.hot.shape[1:])
        in_hot, in_tail = self._divided(rows)
        taken = self.hot.new_empty(len(rows), *self.hot.shape[1:])
        taken.index_copy_(dim, in_hot, self.hot.index_select(dim, rows[in_hot]))
        of_tail = self.tail.index_select(dim, self._places(rows[in_tail]))
        return taken.index_copy_(dim, in_tail, of_tail.to(taken.device))

    def index_copy_(self, dim: int, rows: Tensor, values: Tensor) -> None:
        """Sets the rows with the indices `rows` (N,), which are all different, to `values` (N, …)."""
        if self._by_kernel:
            kernels.put(_flat(self.hot), _flat(self.tail), self.first_tail, rows, _flat(values))
            return
        in_hot, in_tail = self._divided(rows)
        self.hot.index_copy_(dim, rows[in_hot], values[in_hot])
        self.tail.index_copy_(dim, self._places(rows[in_tail]), values[in_tail].to(self.tail.device))

    def copy_(self, other: TieredRows) -> None:
        """Copies another matrix with the same division into two memories."""
        self.hot.copy_(other.hot)
        self.tail.copy_(other.tail)

    def view(self, block: RowBlock) -> Tensor:
        """Returns a view of the rows of a block, which are all in one memory.

        The view is valid until the next step: it waits for the kernels that still write the host memory.
        """
        if self.hot.is_cuda:
            torch.cuda.synchronize(self.hot.device)
        memory, first = (self.hot, 0) if block.place < self.first_tail else (self.tail, self.first_tail)
        return memory[block.place - first : block.place - first + block.rows]

    def _divided(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Returns which elements of `rows` are in the device's memory, and which are in host memory."""
        is_hot = rows < self.first_tail
        return is_hot.nonzero().squeeze(1), is_hot.logical_not().nonzero().squeeze(1)

    def _places(self, rows: Tensor) -> Tensor:
        return (rows - self.first_tail).to(self.tail.device)


RowTensor = Tensor | TieredRows


def _flat(rows: Tensor) -> Tensor:
    """Returns rows (N, …) with one dimension for the numbers of a row."""
    return rows.unsqueeze(1) if rows.dim() == 1 else rows


def rows_of_block(matrix: RowTensor, block: RowBlock) -> Tensor:
    """Returns a view of the rows of a block of a rank's matrix; see `TieredRows.view`."""
    if isinstance(matrix, TieredRows):
        return matrix.view(block)
    return matrix[block.place : block.place + block.rows]
