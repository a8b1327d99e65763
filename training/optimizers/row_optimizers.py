"""The optimisers that the configuration may choose for the rows of tables, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from training.embeddings.table import RowGradient, StackedEmbedding
from training.optimizers.lazy_adam import LazyAdam
from training.optimizers.row_sgd import RowSgd
from training.optimizers.row_wise_adagrad import RowWiseAdagrad


class RowOptimizer(Protocol):
    """Moves the rows of a gradient and reads no others."""

    def step(self, gradient: RowGradient, rate: float, step: int) -> None:
        """One update; `step` is the training's."""
        ...

    def state(self) -> dict[str, Tensor]:
        """By name, tensors that hold an entry for each row of this rank's matrix; not copied."""
        ...


_KINDS: dict[str, Callable[[StackedEmbedding], RowOptimizer]] = {
    "row_wise_adagrad": RowWiseAdagrad,
    "sgd": RowSgd,
    "lazy_adam": LazyAdam,
}


def row_optimizer(name: str, table: StackedEmbedding) -> RowOptimizer:
    """A fresh optimiser of `train.embeddings.optimizer` for a table."""
    return _KINDS[name](table)
