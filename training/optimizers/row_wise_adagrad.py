"""Row-wise Adagrad, the default optimizer of embedding tables."""

from __future__ import annotations

import torch

from training.embeddings.row_gradients import LookupGradient, SummedRowGradient
from training.embeddings.table import StackedEmbedding
from training.embeddings.tiered_rows import RowTensor


class RowWiseAdagrad:
    """Adagrad with one accumulator per row (Mudigere et al. 2022, arXiv:2104.05158).

        accumulator[r] += mean(gradient[r]²);  weight[r] -= rate * gradient[r] / (√accumulator[r] + epsilon)

    A step reads and writes only the rows of the gradient.
    """

    epsilon = 1e-8

    def __init__(self, table: StackedEmbedding) -> None:
        self.table = table
        self.accumulator = table.new_rows()

    @torch.no_grad()
    def step(self, gradient: SummedRowGradient, rate: float, step: int) -> None:
        """Updates the rows of a gradient. `step` is the step of the training."""
        total = self.accumulator.index_select(0, gradient.rows) + gradient.values.square().mean(dim=1)
        self.accumulator.index_copy_(0, gradient.rows, total)
        scale = -rate / (total.sqrt() + self.epsilon)
        self.table.add_to_rows(gradient.rows, gradient.values * scale.unsqueeze(1), step)

    @torch.no_grad()
    def step_lookups(self, gradient: LookupGradient, rate: float, step: int) -> None:
        """Uses the update kernel to do the same as `step`, for a gradient with one entry per lookup."""
        self.table.apply_lookup_gradient(gradient, rate, step, self.accumulator, self.epsilon)

    def state(self) -> dict[str, RowTensor]:
        """Returns `adagrad` (rows,), which has one entry per row of this rank's matrix."""
        return {"adagrad": self.accumulator}
