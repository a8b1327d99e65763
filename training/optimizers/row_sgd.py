"""Stochastic gradient descent on the touched rows of a table: no state."""

from __future__ import annotations

import torch
from torch import Tensor

from training.embeddings.rows import Lookups
from training.embeddings.table import RowGradient, StackedEmbedding


class RowSgd:
    """weight[r] -= rate * gradient[r]"""

    def __init__(self, table: StackedEmbedding) -> None:
        self.table = table
        table.unsummed = table.on_kernels

    @torch.no_grad()
    def step(self, gradient: RowGradient, rate: float, step: int) -> None:
        """Moves the rows of a gradient; `step` is the training's."""
        if isinstance(gradient, Lookups):
            self.table.apply_lookups(gradient, rate, step)
            return
        self.table.move_rows(gradient.rows, gradient.values * -rate, step)

    def state(self) -> dict[str, Tensor]:
        return {}
