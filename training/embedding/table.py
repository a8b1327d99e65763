"""The embedding table: ids in, vectors out, gradients by row.

One matrix holds the rows of every feature made of ids, one feature after the other, so that a batch is one gather
whatever their number, and one more for each feature that is a list of ids. Nothing outside this folder knows where a
row lies: `blocks` says it to those who write rows to disk and read them back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from conf.feature_spec import PAD_ID


@dataclass(frozen=True)
class RowGradient:
    """Gradient of the rows that a batch touched: rows (N,) int64 without repeats, values (N, E) float32."""

    rows: Tensor
    values: Tensor


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


class StackedEmbedding(nn.Module):
    """Embedding rows of C features in one table; starts at zero.

    Args:
        cardinalities: rows of each feature, in order.
        dim: E, numbers a row.
        list_lengths: columns that each of the last features takes, which are lists of ids; all others take one.
        pooling: how the vectors of a list become one.
    """

    def __init__(
        self,
        cardinalities: Sequence[int],
        dim: int,
        list_lengths: Sequence[int] = (),
        pooling: Literal["sum", "mean"] = "mean",
    ) -> None:
        super().__init__()
        self.cardinalities = tuple(cardinalities)
        self.list_lengths = tuple(list_lengths)
        self.pooling = pooling
        self.weight = nn.Parameter(torch.zeros(sum(self.cardinalities), dim))
        starts = [sum(self.cardinalities[:feature]) for feature in range(len(self.cardinalities))]
        self._lists_from = len(starts) - len(self.list_lengths)
        self._list_starts = starts[self._lists_from :]
        single = torch.tensor(starts[: self._lists_from], dtype=torch.int64)
        self.register_buffer("offsets", single, persistent=False)

    offsets: Tensor

    @property
    def blocks(self) -> tuple[RowBlock, ...]:
        """The rows that this rank holds: here all rows of all features, in their order."""
        starts = accumulate(self.cardinalities, initial=0)
        return tuple(
            RowBlock(feature, 0, 1, rows, place)
            for feature, (rows, place) in enumerate(zip(self.cardinalities, starts, strict=False))
        )

    @torch.no_grad()
    def init_uniform(self) -> None:
        """Fills each feature's rows from U(-1/√n, 1/√n), n its cardinality, as the authors of DLRM do.

        The padding row of a list stays zero: nothing reads it and nothing trains it.
        """
        for rows in self.columns():
            bound = 1 / math.sqrt(max(len(rows), 1))
            rows.uniform_(-bound, bound)
        self._clear_padding()

    @torch.no_grad()
    def init_normal(self, deviation: float) -> None:
        """Fills all rows from N(0, deviation²), but for the padding rows of lists."""
        self.weight.normal_(std=deviation)
        self._clear_padding()

    def _clear_padding(self) -> None:
        for rows in self.columns()[self._lists_from :]:
            rows[PAD_ID] = 0

    def columns(self) -> list[Tensor]:
        """A view (cardinality, E) of each feature's rows; ids index it."""
        return list(self.weight.detach().split(self.cardinalities))

    def forward(self, ids: Tensor) -> Tensor:
        """Vectors (B, C, E) of ids (B, W) int32 or int64, each in [0, cardinality of its feature).

        Of a list PAD_ID is left out, of the sum and of the mean's count; the vector of an empty list is zero.
        """
        single, *lists = ids.split([self._lists_from, *self.list_lengths], dim=1)
        vectors = functional.embedding(single + self.offsets, self.weight, sparse=True)
        if not lists:
            return vectors
        pooled = [
            functional.embedding_bag(
                each.long() + start, self.weight, mode=self.pooling, sparse=True, padding_idx=start + PAD_ID
            )
            for each, start in zip(lists, self._list_starts, strict=True)
        ]
        return torch.cat([vectors, torch.stack(pooled, dim=1)], dim=1)

    def take_gradient(self) -> RowGradient:
        """The gradient since the last call, which this clears; no rows when there is none."""
        gradient, self.weight.grad = self.weight.grad, None
        if gradient is None:
            nothing = torch.zeros(0, dtype=torch.int64, device=self.weight.device)
            return RowGradient(nothing, self.weight.new_zeros(0, self.weight.shape[1]))
        return sum_rows(gradient._indices()[0], gradient._values())


def tables_of(model: nn.Module) -> dict[str, StackedEmbedding]:
    """The embedding tables of a model, by the name of their weight in its state."""
    return {
        f"{name}.weight": each for name, each in model.named_modules() if isinstance(each, StackedEmbedding)
    }


def sum_rows(rows: Tensor, values: Tensor) -> RowGradient:
    """Adds up the values (N, E) of equal rows (N,). The result is sorted by row."""
    unique, position = torch.unique(rows, return_inverse=True)
    summed = values.new_zeros(len(unique), values.shape[1]).index_add_(0, position, values)
    return RowGradient(unique, summed)
