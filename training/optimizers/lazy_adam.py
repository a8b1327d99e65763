"""Adam (Kingma & Ba 2015, algorithm 1) on the rows of a table that a batch looked up.

The moments of other rows do not change, as in torch's SparseAdam and TensorFlow Addons' LazyAdam. Both of
these correct the bias of the moments by the number of steps of the training. With that correction, a row that
is first looked up at a late step would move by (1 - decay) / √(1 - square_decay) = 3.2 times the learning
rate in one step. Here, t counts the updates of the row instead:

    m[r] = decay * m[r] + (1 - decay) * g[r]
    v[r] = square_decay * v[r] + (1 - square_decay) * g[r]²
    t[r] += 1
    weight[r] -= rate * (m[r] / (1 - decay^t[r])) / (√(v[r] / (1 - square_decay^t[r])) + epsilon)

Here g[r] is the gradient of row r, and m[r] and v[r] are the row's moments.
"""

from __future__ import annotations

import torch

from training.embeddings.row_gradients import SummedRowGradient
from training.embeddings.table import StackedEmbedding
from training.embeddings.tiered_rows import RowTensor


class LazyAdam:
    """Adam on table rows. It holds moments (rows, E) float32 and update counts (rows,) int32."""

    decay, square_decay, epsilon = 0.9, 0.999, 1e-8

    def __init__(self, table: StackedEmbedding) -> None:
        self.table = table
        self.mean = table.new_rows(table.dim)
        self.square = table.new_rows(table.dim)
        self.updates = table.new_rows(dtype=torch.int32)

    @torch.no_grad()
    def step(self, gradient: SummedRowGradient, rate: float, step: int) -> None:
        """Updates the rows of a gradient. `step` is the step of the training."""
        rows, values = gradient.rows, gradient.values
        mean = self.mean.index_select(0, rows).lerp_(values, 1 - self.decay)
        square = self.square.index_select(0, rows).mul_(self.square_decay)
        square.addcmul_(values, values, value=1 - self.square_decay)
        updates = self.updates.index_select(0, rows) + 1
        self.mean.index_copy_(0, rows, mean)
        self.square.index_copy_(0, rows, square)
        self.updates.index_copy_(0, rows, updates)
        times = updates.double().unsqueeze(1)
        mean_bias = (1 - self.decay**times).float()
        square_bias = (1 - self.square_decay**times).float()
        scale = square.div_(square_bias).sqrt_().add_(self.epsilon)
        self.table.add_to_rows(rows, mean.div_(mean_bias).div_(scale).mul_(-rate), step)

    def state(self) -> dict[str, RowTensor]:
        """Returns the moments and the update counts of this rank's rows by name."""
        return {
            "lazy_adam.mean": self.mean,
            "lazy_adam.square": self.square,
            "lazy_adam.updates": self.updates,
        }
