"""Table rows: the blocks of rows that a rank holds, and sums of values by row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from training import kernels
from training.kernels.tail import Tail
from training.native.library import library, required_library

_INT32_END = 2**31
_FEW_KEYS = 2**18


@dataclass(frozen=True)
class RowBlock:
    """Rows of one feature that are consecutive in this rank's matrix.

    Attributes:
        feature: index among the table's features.
        first, step, rows: the block has `rows` rows of the feature: first, first + step, first + 2 * step, …
        place: the index of the block's first row in the matrix.
        written: whether this rank saves the block. If all ranks hold the same rows, only one rank saves them.
    """

    feature: int
    first: int
    step: int
    rows: int
    place: int
    written: bool = True


@dataclass(frozen=True)
class Groups:
    """The grouping of N elements by key. There are U distinct keys.

    Attributes:
        keys: (U,) int64, the distinct keys in ascending order.
        order: (N,) int64, the indices of the elements sorted by key; elements with the same key keep their
            order.
        starts: (U,) int64, the index in `order` where each key's elements begin.
    """

    keys: Tensor
    order: Tensor
    starts: Tensor

    def position(self) -> Tensor:
        """Returns, for each element, the index of its key in `keys`: (N,) int64."""
        begins = torch.zeros_like(self.order)
        begins[self.starts[1:]] = 1
        return torch.empty_like(self.order).index_copy_(0, self.order, begins.cumsum(0))

    def sum(self, values: Tensor, source: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        """Returns for each key the sum (U, E) of the rows of `values` that the key's elements add.

        The rows are added in the order of the elements, so equal calls give bit-identical results.

        Args:
            values: (M, E) float32.
            source: (N,) int64, the index of the row of `values` that each element adds. None means that
                element n adds row n.
            weights: (N,) float32, the factor of each element's row; None means that all factors are 1.
        """
        if not len(self.keys):
            return values.new_zeros(0, values.shape[1])
        if values.is_cuda:
            return sum_by_sorting(self, values, source, weights)
        # An embedding bag sums the rows of each key. On a CPU, an embedding bag is several times faster than
        # index_add_.
        indices = self.order if source is None else source.index_select(0, self.order)
        ordered = None if weights is None else weights.index_select(0, self.order)
        return functional.embedding_bag(indices, values, self.starts, mode="sum", per_sample_weights=ordered)


def sum_by_sorting(
    groups: Groups, values: Tensor, source: Tensor | None = None, weights: Tensor | None = None
) -> Tensor:
    """Sums rows by key (`Groups.sum`) on a GPU, where an embedding bag would use one thread per key."""
    elements = values if source is None else values.index_select(0, source)
    if weights is not None:
        elements = elements * weights.unsqueeze(1)
    return torch.ops.aten.embedding_dense_backward(elements, groups.position(), len(groups.keys), -1, False)


def group(keys: Tensor, end: int) -> Groups:
    """Groups N elements by their keys (N,), which are integers in [0, end).

    Small batches on a CPU are grouped by compiled code, which needs less time than `torch.sort` on one core.
    For large batches, `torch.sort` uses all cores.
    """
    small = keys.device.type == "cpu" and len(keys) <= _FEW_KEYS and end <= 1 << KEY_BITS
    if small and keys.dtype == torch.int64 and library() is not None:
        return Groups(*compiled_groups(keys, end))
    ordered, order, begins = _sorted(keys, end)
    starts = begins.nonzero().squeeze(1)
    return Groups(ordered.index_select(0, starts).long(), order, starts)


def group_and_count(keys: Tensor, ends: Tensor, end: int) -> tuple[Groups, list[int]]:
    """Groups N elements by their keys (N,), and counts the distinct keys in each range of keys.

    The host waits for a GPU only once, because the number of distinct keys is the sum of the counts.

    Args:
        keys: integers in [0, end).
        ends: (R,) int64, the ends of the ranges in ascending order.
        end: the last of `ends`.
    """
    if keys.device.type == "cpu":
        groups = group(keys, end)
        return groups, _counts(torch.searchsorted(groups.keys, ends)).tolist()
    ordered, order, begins = _sorted(keys, end)
    before = torch.cat([begins.new_zeros(1, dtype=torch.int64), begins.cumsum(0)])
    counts = _counts(before[torch.searchsorted(ordered, ends.to(ordered.dtype))]).tolist()
    starts = torch.nonzero_static(begins, size=sum(counts)).squeeze(1)
    return Groups(ordered.index_select(0, starts).long(), order, starts), counts


def _counts(ends: Tensor) -> Tensor:
    """Computes the sizes of consecutive ranges from the ends of these ranges."""
    return ends.diff(prepend=ends.new_zeros(1))


def _sorted(keys: Tensor, end: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns three tensors (N,): the sorted keys, their order, and whether an element is its key's first."""
    narrow = keys.to(torch.int32) if end < _INT32_END else keys  # sorting 32-bit keys is faster
    ordered, order = torch.sort(narrow, stable=True)
    begins = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[1:], ordered[:-1], out=begins[1:])
    return ordered, order, begins


def sum_rows(rows: Tensor, values: Tensor, end: int = 2**62) -> SummedRowGradient:
    """Sums the `values` (N, E) that belong to the same row, in the order of `values`.

    `rows` (N,) contains the row indices, integers in [0, end). The result is sorted by row.
    """
    groups = group(rows, end)
    return SummedRowGradient(groups.keys, groups.sum(values))


# The classes below hold the gradient of a table's rows: summed by row, or with one entry per lookup.
#
# Notation: N entries, E numbers per row, M looked-up vectors.


@dataclass(frozen=True)
class SummedRowGradient:
    """The gradient of the rows that a batch looked up, with one entry per distinct row.

    Attributes:
        rows: (N,) int64, the indices of the rows, all different.
        values: (N, E) float32, the gradient of each row.
    """

    rows: Tensor
    values: Tensor


@dataclass(frozen=True)
class LookupGradient:
    """The gradient of the vectors that a batch looked up, with one entry per lookup or per rank.

    If a row was looked up several times, or by several ranks, it has several entries. The update kernel sums
    the entries of a row (training/kernels/row_update.py).

    Attributes:
        rows: (N,) int64, the index of the row that each entry belongs to, in any order.
        values: (M, E), the gradients of the looked-up vectors.
        sources: (N,) int64, the index of the row of `values` that belongs to each lookup. None means that
            lookup n uses row n.
        weights: (N,) float32, a factor for each lookup's row of `values`. None means that all factors are 1.
    """

    rows: Tensor
    values: Tensor
    sources: Tensor | None = None
    weights: Tensor | None = None


RowGradient = SummedRowGradient | LookupGradient


# Table rows in two memories: frequent rows are on the device, and all other rows are in host memory.
#
# The rows in host memory are never copied to the device as a whole. If Triton's kernels are used, they read
# and write single rows through the address of the host memory, which is pinned. Otherwise the CPU reads and
# writes these rows, and a GPU waits for the CPU. If the device is the CPU, both memories are tensors on the
# CPU.
#
# Notation: N rows of a matrix, E numbers per row.


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
        """Returns what Triton kernels need to use the rows in host memory and their Adagrad accumulators."""
        return Tail(self.tail, self.first_tail, None if accumulator is None else accumulator.tail)

    def index_select(self, dim: int, rows: Tensor) -> Tensor:
        """Returns a copy of the rows with indices `rows` (N,), on the device of `hot`. `dim` must be 0."""
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
        """Copies the rows of another matrix, which must have the same rows on the device as this one."""
        self.hot.copy_(other.hot)
        self.tail.copy_(other.tail)

    def view(self, block: RowBlock) -> Tensor:
        """Returns a view of the rows of a block. All these rows are either on the device or in host memory.

        The method first waits for kernels that still write the host memory. The view is valid until the next
        step.
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
    """Returns the rows as a matrix: rows of the shape (N,) become (N, 1), and others stay unchanged."""
    return rows.unsqueeze(1) if rows.dim() == 1 else rows


def rows_of_block(matrix: RowTensor, block: RowBlock) -> Tensor:
    """Returns a view of the rows of a block of a rank's matrix; see `TieredRows.view`."""
    if isinstance(matrix, TieredRows):
        return matrix.view(block)
    return matrix[block.place : block.place + block.rows]


# The code below groups equal keys by a compiled function (training/native/group.cpp).

KEY_BITS = 31  # the largest number of bits of a key


def compiled_groups(keys: Tensor, end: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the `keys`, `order` and `starts` of `training.embeddings.rows.Groups`.

    Args:
        keys: (N,) int64 on the CPU, integers in [0, end).
        end: at most 2^KEY_BITS.

    Raises:
        MemoryError: memory ran out.
    """
    keys = keys.contiguous()
    order, distinct, starts = (torch.empty_like(keys) for _ in range(3))
    addresses = (order.data_ptr(), distinct.data_ptr(), starts.data_ptr())
    bits = max(end - 1, 0).bit_length()
    count = required_library().nightrank_group(len(keys), keys.data_ptr(), bits, *addresses)
    if count < 0:
        raise MemoryError
    return distinct[:count], order, starts[:count]
