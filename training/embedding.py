"""The embedding table: ids in, vectors out, gradients by row, with the optimiser for touched rows beside it.

One matrix holds the rows of every categorical column, one column after the other, so that a batch is one gather
whatever the number of columns. Nothing outside this module knows where a row lies; a table split over ranks can
take its place behind the same three calls: forward, take_gradient and RowWiseAdagrad.step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class RowGradient:
    """Gradient of the rows that a batch touched: rows (N,) int64 without repeats, values (N, E) float32."""

    rows: Tensor
    values: Tensor


class StackedEmbedding(nn.Module):
    """Embedding rows of C categorical columns in one table; starts at zero.

    Args:
        cardinalities: rows of each column, in order.
        dim: E, numbers a row.
    """

    def __init__(self, cardinalities: Sequence[int], dim: int) -> None:
        super().__init__()
        self.cardinalities = tuple(cardinalities)
        self.weight = nn.Parameter(torch.zeros(sum(self.cardinalities), dim))
        starts = [sum(self.cardinalities[:column]) for column in range(len(self.cardinalities))]
        self.register_buffer("offsets", torch.tensor(starts, dtype=torch.int64), persistent=False)

    offsets: Tensor

    @torch.no_grad()
    def init_uniform(self) -> None:
        """Fills each column's rows from U(-1/√n, 1/√n), n its cardinality, as the authors of DLRM do."""
        for rows in self.columns():
            bound = 1 / math.sqrt(max(len(rows), 1))
            rows.uniform_(-bound, bound)

    def columns(self) -> list[Tensor]:
        """A view (cardinality, E) of each column's rows; ids index it."""
        return list(self.weight.detach().split(self.cardinalities))

    def forward(self, ids: Tensor) -> Tensor:
        """Vectors (B, C, E) of ids (B, C) int64, each in [0, cardinality of its column)."""
        return functional.embedding(ids + self.offsets, self.weight, sparse=True)

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


class RowWiseAdagrad:
    """Adagrad with one accumulator a row: the mean of its squared gradients (Mudigere et al. 2022, arXiv:2104.05158).

        accumulator[r] += mean(gradient[r]²);  weight[r] -= rate * gradient[r] / (√accumulator[r] + epsilon)

    Only the rows of the gradient are read and written.
    """

    epsilon = 1e-8

    def __init__(self, table: StackedEmbedding) -> None:
        self.table = table
        self.accumulator = torch.zeros(table.weight.shape[0], device=table.weight.device)

    @torch.no_grad()
    def step(self, gradient: RowGradient, rate: float) -> None:
        total = self.accumulator[gradient.rows] + gradient.values.square().mean(dim=1)
        self.accumulator[gradient.rows] = total
        scale = -rate / (total.sqrt() + self.epsilon)
        self.table.weight.index_add_(0, gradient.rows, gradient.values * scale.unsqueeze(1))
