"""Row-wise Adagrad: what trains embedding tables unless the configuration says otherwise."""

from __future__ import annotations

import torch
from torch import Tensor

from training.embeddings.rows import Lookups
from training.embeddings.table import RowGradient, StackedEmbedding


class RowWiseAdagrad:
    """Adagrad with one accumulator a row: the mean of its squared gradients (Mudigere et al. 2022, arXiv:2104.05158).

        accumulator[r] += mean(gradient[r]²);  weight[r] -= rate * gradient[r] / (√accumulator[r] + epsilon)

    Only the rows of the gradient are read and written.
    """

    epsilon = 1e-8

    def __init__(self, table: StackedEmbedding) -> None:
        self.table = table
        table.unsummed = table.on_kernels
        self.accumulator = torch.zeros(table.weight.shape[0], device=table.weight.device)

    @torch.no_grad()
    def step(self, gradient: RowGradient, rate: float, step: int) -> None:
        """Moves the rows of a gradient; `step` is the training's."""
        if isinstance(gradient, Lookups):
            self.table.apply_lookups(gradient, rate, step, self.accumulator, self.epsilon)
            return
        total = self.accumulator.index_select(0, gradient.rows) + gradient.values.square().mean(dim=1)
        self.accumulator.index_copy_(0, gradient.rows, total)
        scale = -rate / (total.sqrt() + self.epsilon)
        self.table.move_rows(gradient.rows, gradient.values * scale.unsqueeze(1), step)

    def state(self) -> dict[str, Tensor]:
        """`adagrad` (rows,): an entry for each row of this rank's matrix."""
        return {"adagrad": self.accumulator}
