"""The optimizers of table rows that the configuration can choose, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import Tensor

from training.embeddings.row_gradients import LookupGradient, SummedRowGradient
from training.embeddings.table import StackedEmbedding
from training.optimizers.lazy_adam import LazyAdam
from training.optimizers.row_sgd import RowSgd
from training.optimizers.row_wise_adagrad import RowWiseAdagrad


class RowOptimizer(Protocol):
    """Updates the rows of a gradient and reads no others."""

    def step(self, gradient: SummedRowGradient, rate: float, step: int) -> None:
        """One update; `step` is the training's."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Tensors by name that have an entry for each row of this rank's matrix; not copied."""
        ...


@runtime_checkable
class LookupOptimizer(RowOptimizer, Protocol):
    """A row optimizer that can leave the sum of equal rows to the update kernel."""

    def step_lookups(self, gradient: LookupGradient, rate: float, step: int) -> None:
        """As `step`, for a table that uses kernels."""
        ...


_KINDS: dict[str, Callable[[StackedEmbedding], RowOptimizer]] = {
    "row_wise_adagrad": RowWiseAdagrad,
    "sgd": RowSgd,
    "lazy_adam": LazyAdam,
}


def row_optimizer(name: str, table: StackedEmbedding) -> RowOptimizer:
    """A new optimizer for a table, by the name in `train.embeddings.optimizer`."""
    return _KINDS[name](table)
