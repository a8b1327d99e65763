"""Gradients of a table's rows: summed by row, or one entry for each lookup.

Notation: N entries, E numbers a row, M vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class SummedRowGradient:
    """The gradient of the rows that a batch looked up, with one entry for each distinct row.

    Attributes:
        rows: (N,) int64, all different.
        values: (N, E) float32.
    """

    rows: Tensor
    values: Tensor


@dataclass(frozen=True)
class LookupGradient:
    """The gradient of the vectors that a batch looked up, with one entry for each lookup.

    A row that was looked up several times has several entries. The update kernel sums them
    (training/kernels/row_update.py).

    Attributes:
        rows: (N,) int64, the row of each lookup, in any order.
        values: (M, E), the gradients of vectors.
        sources: (N,) int64, the row of `values` that belongs to each lookup. None if N = M and the order is
            equal.
        weights: (N,) float32, the factor of that row of `values`. None stands for 1.
    """

    rows: Tensor
    values: Tensor
    sources: Tensor | None = None
    weights: Tensor | None = None


RowGradient = SummedRowGradient | LookupGradient
