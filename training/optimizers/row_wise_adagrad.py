"""Row-wise Adagrad: the optimiser of embedding tables."""

from __future__ import annotations

import torch

from training.embedding.table import RowGradient, StackedEmbedding


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
