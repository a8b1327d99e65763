"""Table rows: the blocks of rows that a rank holds, and sums of values by row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from training.embeddings.row_gradients import SummedRowGradient
from training.native.grouping import KEY_BITS, compiled_groups
from training.native.library import library

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
        """Returns for each key the sum of the rows of `values` that its elements add, (U, E).

        Elements are added in their order, so that equal calls give bit-identical results.

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
        # An embedding bag sums the rows of each key. On a CPU it is several times faster than index_add_.
        indices = self.order if source is None else source.index_select(0, self.order)
        ordered = None if weights is None else weights.index_select(0, self.order)
        return functional.embedding_bag(indices, values, self.starts, mode="sum", per_sample_weights=ordered)


def sum_by_sorting(
    groups: Groups, values: Tensor, source: Tensor | None = None, weights: Tensor | None = None
) -> Tensor:
    """Computes `Groups.sum` on a GPU, where an embedding bag would use only one thread per key."""
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
    """Groups N elements by their keys (N,), and counts the distinct keys in each of some ranges.

    It waits for a GPU only once, because the number of distinct keys is the sum of the counts.

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
    """Returns the sizes of consecutive ranges from their ends."""
    return ends.diff(prepend=ends.new_zeros(1))


def _sorted(keys: Tensor, end: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the sorted keys, their order, and where the elements of each key begin (bool); (N,) each."""
    narrow = keys.to(torch.int32) if end < _INT32_END else keys  # 32 bits sort faster than 64
    ordered, order = torch.sort(narrow, stable=True)
    begins = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[1:], ordered[:-1], out=begins[1:])
    return ordered, order, begins


def sum_rows(rows: Tensor, values: Tensor, end: int = 2**62) -> SummedRowGradient:
    """Sums those `values` (N, E) that belong to the same row, in the order of `values`.

    `rows` (N,) contains the row indices, integers in [0, end). The result is sorted by row.
    """
    groups = group(rows, end)
    return SummedRowGradient(groups.keys, groups.sum(values))
