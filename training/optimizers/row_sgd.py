"""Stochastic gradient descent on the rows of a table that a batch looked up. The optimizer has no state."""

from __future__ import annotations

import torch

from training.embeddings.row_gradients import LookupGradient, SummedRowGradient
from training.embeddings.table import StackedEmbedding
from training.embeddings.tiered_rows import RowTensor


class RowSgd:
    """Updates each row r that has a gradient: weight[r] -= rate * gradient[r]."""

    def __init__(self, table: StackedEmbedding) -> None:
        self.table = table

    @torch.no_grad()
    def step(self, gradient: SummedRowGradient, rate: float, step: int) -> None:
        """Updates the rows of a gradient. `step` is the step of the training."""
        self.table.add_to_rows(gradient.rows, gradient.values * -rate, step)

    @torch.no_grad()
    def step_lookups(self, gradient: LookupGradient, rate: float, step: int) -> None:
        """Uses the update kernel to do the same as `step`, for a gradient with one entry per lookup."""
        self.table.apply_lookup_gradient(gradient, rate, step)

    def state(self) -> dict[str, RowTensor]:
        """Returns an empty dictionary, because SGD has no state."""
        return {}
