"""Gradients of a table's rows: summed by row, or with one entry per lookup.

Notation: N entries, E numbers per row, M looked-up vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


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
