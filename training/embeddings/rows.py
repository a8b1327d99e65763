"""Rows of tables: where a rank's rows lie, gradients by row, and the adding up of what belongs to equal rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

_INT32_END = 2**31


@dataclass(frozen=True)
class RowGradient:
    """Gradient of the rows that a batch touched: rows (N,) int64 without repeats, values (N, E) float32."""

    rows: Tensor
    values: Tensor


@dataclass(frozen=True)
class Lookups(RowGradient):
    """What a batch looked up and the gradients of its vectors, not yet added up: for kernels that do it as they update.

    Attributes:
        rows: (N,) int64, one for each lookup, in any order and with repeats.
        values: (M, E).
        sources: (N,) int64 the row of `values` that belongs to each lookup; None where N = M and they go in order.
        weights: (N,) float32 what that row is multiplied by; None for 1.
    """

    sources: Tensor | None = None
    weights: Tensor | None = None


@dataclass(frozen=True)
class RowBlock:
    """Rows of one feature that lie together in this rank's matrix.

    Attributes:
        feature: which, among the table's.
        first, step, rows: the block holds the feature's rows first, first + step, first + 2 * step, …: so many.
        place: where the first of them lies in the matrix; the others follow it.
        written: whether this rank saves them; of rows that every rank holds, one does.
    """

    feature: int
    first: int
    step: int
    rows: int
    place: int
    written: bool = True


@dataclass(frozen=True)
class Groups:
    """N elements by their keys, of which U are distinct.

    Attributes:
        keys: (U,) int64, ascending.
        order: (N,) int64, the elements sorted by key; those of one key keep their order.
        starts: (U,) int64, where in `order` each key's elements begin.
    """

    keys: Tensor
    order: Tensor
    starts: Tensor

    def position(self) -> Tensor:
        """(N,) int64, where in `keys` each element's key stands."""
        begins = torch.zeros_like(self.order)
        begins[self.starts[1:]] = 1
        return torch.empty_like(self.order).index_copy_(0, self.order, begins.cumsum(0))

    def sum(self, values: Tensor, source: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        """(U, E) the sum of each key's elements, added in their order, so that equal calls give equal bits.

        Args:
            values: (M, E) float32.
            source: (N,) int64, the row of `values` that each element adds; None where M = N and each adds its own.
            weights: (N,) float32, what an element's row is multiplied by.
        """
        if not len(self.keys):
            return values.new_zeros(0, values.shape[1])
        if values.is_cuda:
            return sum_by_sorting(self, values, source, weights)
        # The bags of an embedding bag are sums over runs of an order: five times as fast as index_add_ on a CPU.
        indices = self.order if source is None else source.index_select(0, self.order)
        ordered = None if weights is None else weights.index_select(0, self.order)
        return functional.embedding_bag(indices, values, self.starts, mode="sum", per_sample_weights=ordered)


def sum_by_sorting(
    groups: Groups, values: Tensor, source: Tensor | None = None, weights: Tensor | None = None
) -> Tensor:
    """As `Groups.sum`, for a GPU: there one bag is one thread's, and a row that half of a batch holds would be added by it alone."""
    elements = values if source is None else values.index_select(0, source)
    if weights is not None:
        elements = elements * weights.unsqueeze(1)
    return torch.ops.aten.embedding_dense_backward(elements, groups.position(), len(groups.keys), -1, False)


def group(keys: Tensor, end: int) -> Groups:
    """Groups elements by their keys (N,), integers in [0, end)."""
    narrow = keys.to(torch.int32) if end <= _INT32_END else keys  # sorted several times as fast
    ordered, order = torch.sort(narrow, stable=True)
    begins = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[1:], ordered[:-1], out=begins[1:])
    starts = begins.nonzero().squeeze(1)
    return Groups(ordered.index_select(0, starts).long(), order, starts)


def sum_rows(rows: Tensor, values: Tensor, end: int = 2**62) -> RowGradient:
    """Adds up the values (N, E) of equal rows (N,), each in [0, end), in their order. The result is sorted by row."""
    groups = group(rows, end)
    return RowGradient(groups.keys, groups.sum(values))
